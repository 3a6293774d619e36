"""Where a pipeline stands: its tables, their offsets against the ends of the topics, and who runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.kafka.topics import Admin
from penstock.lake.lag import PartitionLag, lag_of
from penstock.lake.locks import APP_GROUP, LockName, normalised, owners
from penstock.lake.offsets import Naming, Offsets, lowest
from penstock.lake.options import LakeOptions
from penstock.lake.preparing import naming_of, partitions_of
from penstock.lake.table_log import TableFacts, facts_of
from penstock.settings import Settings
from penstock.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SessionMaker = Callable[[], "SparkSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    place: str
    facts: TableFacts | None
    """None where the table is not there yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of one pipeline."""

    options: LakeOptions
    tables: tuple[TableStatus, ...]
    dead_letters: TableStatus | None
    lags: tuple[PartitionLag, ...]
    holder: str | None
    """The process that has the pipeline's lock, if one has."""
    problem: str = ""
    """Why nothing is known of its topics."""

    @property
    def lag_messages(self) -> int:
        return sum(each.messages for each in self.lags)

    def lag_seconds(self, now_ms: int) -> float:
        return max((each.seconds(now_ms) for each in self.lags), default=0.0)


def status_of(
    settings: Settings, options: LakeOptions, *, session: SessionMaker, holders: Mapping[str, str], with_rows: bool
) -> Status:
    """Raises BrokerUnavailable. `session` is asked for only where the table's log alone does not tell enough."""
    tables = tuple(
        TableStatus(place=landing.table, facts=_facts(landing.table, session, with_rows=with_rows))
        for landing in options.landings()
    )
    dead = (
        TableStatus(place=options.dead_letters, facts=_facts(options.dead_letters, session, with_rows=with_rows))
        if options.on_bad_messages == "quarantine"
        else None
    )
    lags, problem = _lags(settings, options, tables)
    return Status(
        options=options,
        tables=tables,
        dead_letters=dead,
        lags=tuple(lags),
        holder=holders.get(options.app_id),
        problem=problem,
    )


def stored_offsets(facts: TableFacts, naming: Naming, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    return {each: facts.transactions[name] for each in partitions if (name := naming.of(each)) in facts.transactions}


def holders(settings: Settings, app_ids: Iterable[str]) -> dict[str, str]:
    """Which process runs which of these app_ids now."""
    return {
        name.name: owner for name, owner in owners(settings, [LockName(APP_GROUP, each) for each in app_ids]).items()
    }


def _lags(settings: Settings, options: LakeOptions, tables: tuple[TableStatus, ...]) -> tuple[list[PartitionLag], str]:
    with Admin(settings.kafka) as admin:
        try:
            partitions = partitions_of(admin, options.topic)
            return lag_of(settings.kafka, admin, _stored(options, tables, partitions), partitions), ""
        except NotFound as missing:
            return [], missing.what


def _stored(options: LakeOptions, tables: tuple[TableStatus, ...], partitions: list[TopicPartition]) -> Offsets:
    """What every table has: a run would go on behind it."""
    naming = naming_of(options)
    return lowest(
        [{} if table.facts is None else stored_offsets(table.facts, naming, partitions) for table in tables], partitions
    )


def _facts(place: str, session: SessionMaker, *, with_rows: bool) -> TableFacts | None:
    there = normalised(place)
    if "://" not in there:
        facts = facts_of(Path(there))
        if facts is not None and (facts.rows is not None or not with_rows):
            return facts
        if not (Path(there) / "_delta_log").is_dir():
            return None
    return _facts_by_spark(session(), place)


def _facts_by_spark(session: SparkSession, place: str) -> TableFacts | None:
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.lake.sink import Table

    table = Table(session, place)
    if not table.exists():
        return None
    transaction = table.begin()
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint") - F.coalesce(
        F.col("deletionVector.cardinality"), F.lit(0)
    )
    told = (
        table.files()
        .agg(
            F.count("*").alias("files"),
            F.sum("size").alias("bytes"),
            F.sum(rows).alias("rows"),
            F.count(F.when(rows.isNull(), 1)).alias("untold"),
        )
        .first()
    )
    return TableFacts(
        version=transaction.read_version,
        files=told["files"],
        bytes=told["bytes"] or 0,
        rows=(told["rows"] or 0) if not told["untold"] else None,
        committed_ms=transaction.committed_ms(),
        transactions=transaction.all_stored(),
    )
