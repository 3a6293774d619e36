"""A table as others see it: its log as JSON, and its rows through a reader that has nothing to do with Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder


def log_of(table: Path | str) -> dict[int, list[dict[str, Any]]]:
    """Every version of a table that has not been cleaned up: its actions."""
    return {
        int(path.stem): [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in sorted(Path(table, "_delta_log").glob("*.json"))
    }


def operations_of(table: Path | str) -> list[str]:
    return [
        action["commitInfo"]["operation"]
        for actions in log_of(table).values()
        for action in actions
        if "commitInfo" in action
    ]


def stored_in(table: Path | str) -> dict[str, int]:
    """The stored offsets by name, as the log has them last."""
    return {
        action["txn"]["appId"]: action["txn"]["version"]
        for actions in log_of(table).values()
        for action in actions
        if "txn" in action
    }


def rows_of(table: Path | str, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
    """What the independent reader finds; the query knows the table as `t`."""
    found = QueryBuilder().register("t", DeltaTable(str(table))).execute(query)
    return [row for batch in found for row in batch.to_struct_array().to_pylist()]


def offsets_of(table: Path | str) -> list[tuple[int, int]]:
    """Partition and offset of every row, in order."""
    return sorted((row["_partition"], row["_offset"]) for row in rows_of(table, "SELECT _partition, _offset FROM t"))
