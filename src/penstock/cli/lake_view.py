"""Pipelines and their partitions as documents and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.cli.claims_view import age, at
from penstock.lake.lag import PartitionLag
from penstock.lake.status import Status, TableStatus


def status_document(status: Status, now_ms: int) -> dict[str, Any]:
    options = status.options
    return {
        "pipeline": options.name,
        "app_id": options.app_id,
        "topic": str(options.topic),
        "tables": [_table_document(table) for table in status.tables],
        "dead_letters": None if status.dead_letters is None else _table_document(status.dead_letters),
        "lag_messages": status.lag_messages,
        "lag_seconds": status.lag_seconds(now_ms),
        "run_by": status.holder,
        "problem": status.problem,
        "partitions": [_partition(lag, now_ms) for lag in status.lags],
    }


def status_row(status: Status, now_ms: int) -> Iterator[tuple[object, ...]]:
    """A row for each table; what is said of the pipeline as a whole stands in the first."""
    dead = status.dead_letters.facts if status.dead_letters else None
    of_pipeline: tuple[object, ...] = (
        "-" if dead is None or dead.rows is None else f"{dead.rows:,}",
        f"{status.lag_messages:,}",
        age(round(status.lag_seconds(now_ms) * 1_000)),
        status.holder or "-",
    )
    name = status.options.name
    for table in status.tables:
        yield (name, table.place, *_table_cells(table), *of_pipeline)
        name, of_pipeline = "", ("", "", "", "")


def offset_document(status: Status, lag: PartitionLag, now_ms: int) -> dict[str, Any]:
    return {"pipeline": status.options.name, **_partition(lag, now_ms)}


def offset_row(status: Status, lag: PartitionLag, now_ms: int) -> tuple[object, ...]:
    stored = "-" if lag.stored is None else lag.stored
    behind = "-" if lag.oldest_ms is None else age(now_ms - lag.oldest_ms)
    return (status.options.name, lag.partition, stored, lag.next_offset, lag.bounds.stable_end, lag.messages, behind)


def size(count: int | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} TB"


def _table_document(table: TableStatus) -> dict[str, Any]:
    facts = table.facts
    if facts is None:
        return {"table": table.place, "version": None}
    return {
        "table": table.place,
        "version": facts.version,
        "rows": facts.rows,
        "files": facts.files,
        "bytes": facts.bytes,
        "mean_file_bytes": facts.mean_file_bytes,
        "committed_at": None if facts.committed_ms is None else at(facts.committed_ms),
    }


def _table_cells(table: TableStatus) -> tuple[object, ...]:
    facts = table.facts
    if facts is None:
        return ("not yet", "-", "-", "-", "-")
    rows = "-" if facts.rows is None else f"{facts.rows:,}"
    return (facts.version, rows, f"{facts.files:,}", size(facts.bytes), size(facts.mean_file_bytes))


def _partition(lag: PartitionLag, now_ms: int) -> dict[str, Any]:
    return {
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "stored": lag.stored,
        "next": lag.next_offset,
        "end": lag.bounds.stable_end,
        "lag_messages": lag.messages,
        "lag_seconds": lag.seconds(now_ms),
    }
