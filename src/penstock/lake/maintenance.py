"""Maintenance of tables: small files of closed partitions become large ones, files that nobody needs are removed.

Both are commits that go along with landing, in the same process. From another process they would be a second writer, so
`penstock lake maintain` takes the locks that a run has. Beside a run its option `maintenance` does it in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.lake.operating import operating_session
from penstock.lake.options import LakeOptions
from penstock.lake.sink import Table
from penstock.observe import tell
from penstock.observe.events import LakeMaintained, LakeMaintenanceFailed
from penstock.values import Duration, duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOSED_AFTER = duration("1h")
# Files of a batch under way are in no version yet, and look like files that nobody needs.
VACUUM_LEAST_BESIDE_LANDING = duration("1h")

_STOP_S = 5.0
_AGAIN_S = 0.1
_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What was done to one table."""

    table: str
    partitions: tuple[str, ...]
    """The conditions of the partitions that were compacted; one empty condition is the whole table."""
    files_compacted: int = 0
    files_written: int = 0
    files_removed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Folder:
    """One partition of a table, as its log describes it."""

    values: Mapping[str, str | None]
    small_files: int
    newest_ms: int
    """When its newest file was written."""


def closed(folders: Iterable[Folder], *, now_ms: int, closed_after: Duration) -> list[Folder]:
    """Those into which nothing is landed any more and that have something to compact."""
    return [each for each in folders if each.small_files > 1 and now_ms - each.newest_ms >= closed_after]


def condition_of(values: Mapping[str, str | None]) -> str:
    """The partition with these values, in SQL; nothing for a table without partitions."""
    return " AND ".join(
        f"`{name.replace('`', '``')}` " + ("IS NULL" if value is None else f"= '{_escaped(value)}'")
        for name, value in values.items()
    )


def maintain(
    session: SparkSession,
    options: LakeOptions,
    *,
    closed_after: Duration,
    beside_landing: bool,
    given_up: Callable[[], bool] = lambda: False,
) -> list[Maintained]:
    """Compact and clean all tables of a pipeline that exist, one after the other. Raises CancelledError if given up."""
    own = _own_session(session, options)
    places = [landing.table for landing in options.landings()]
    if options.on_bad_messages == "quarantine":
        places.append(options.dead_letters)
    keep = max(options.vacuum_after, VACUUM_LEAST_BESIDE_LANDING) if beside_landing else options.vacuum_after
    tables = [Table(own, place) for place in dict.fromkeys(places)]
    return [
        _maintained(own, table, options, closed_after=closed_after, keep=Duration(keep), given_up=given_up)
        for table in tables
        if table.exists()
    ]


class Caretaker:
    """Maintains the tables of a pipeline once in every period, beside landing, until it is stopped."""

    def __init__(self, session: SparkSession, options: LakeOptions, every: Duration) -> None:
        self._session, self._options, self._every = session, options, every
        self._stopping = threading.Event()
        self._jobs = f"maintenance of {options.name}"
        self._thread = threading.Thread(target=self._run, name=f"lake-care-{options.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is under way is given up; the table is then as if it had not begun."""
        self._stopping.set()
        deadline = time.monotonic() + _STOP_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Again and again: between two jobs there is nothing to cancel.
            with suppress(Exception):  # Java may be gone already
                self._session.sparkContext.cancelJobGroup(self._jobs)
            self._thread.join(_AGAIN_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._every.seconds):
            try:
                self._session.sparkContext.setJobGroup(self._jobs, self._jobs, interruptOnCancel=True)
                done = maintain(
                    self._session,
                    self._options,
                    closed_after=self._every,
                    beside_landing=True,
                    given_up=self._stopping.is_set,
                )
            except Exception as failure:  # noqa: BLE001 - landing must not suffer from it, and the next period comes
                if not self._stopping.is_set():
                    reason = str(failure).partition("\n")[0]
                    tell(LakeMaintenanceFailed(pipeline=self._options.name, table=self._options.table, reason=reason))
                continue
            for each in done:
                tell_of(self._options.name, each)


def tell_of(pipeline: str, done: Maintained) -> None:
    tell(
        LakeMaintained(
            pipeline=pipeline,
            table=done.table,
            files_compacted=done.files_compacted,
            files_written=done.files_written,
            files_removed=done.files_removed,
            seconds=done.seconds,
        )
    )


def _own_session(session: SparkSession, options: LakeOptions) -> SparkSession:
    """Pipelines differ in the size of files that they want."""
    size = str(options.min_bytes_per_file)
    tasks = _TASKS_PER_CORE * max(2, session.sparkContext.defaultParallelism)
    return operating_session(
        session,
        {
            "spark.databricks.delta.optimize.minFileSize": size,
            "spark.databricks.delta.optimize.maxFileSize": size,
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.databricks.delta.vacuum.logging.enabled": "true",
            # Else Delta takes the table's own week, whatever VACUUM is told.
            "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
            # The tasks of a VACUUM, however small the table is: 10,000 by default, and beside landing that is minutes.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(tasks),
        },
    )


def _maintained(
    session: SparkSession,
    table: Table,
    options: LakeOptions,
    *,
    closed_after: Duration,
    keep: Duration,
    given_up: Callable[[], bool],
) -> Maintained:
    from delta.tables import DeltaTable

    began = time.monotonic()
    delta = DeltaTable.forPath(session, table.place)
    folders = _folders(table, options.min_bytes_per_file)
    if any(folder.values for folder in folders):
        folders = closed(folders, now_ms=int(time.time() * 1_000), closed_after=closed_after)
    else:
        # Without partitions nothing is ever closed; its small files are old enough as they are.
        folders = [folder for folder in folders if folder.small_files > 1]
    compacted = written = 0
    conditions = [condition_of(folder.values) for folder in folders]
    for condition in conditions:
        _go_on_unless(given_up)
        optimizing = delta.optimize().where(condition) if condition else delta.optimize()
        metrics = optimizing.executeCompaction().select("metrics.*").first()
        compacted += int(metrics["numFilesRemoved"])
        written += int(metrics["numFilesAdded"])
    _go_on_unless(given_up)
    before = table.begin().read_version
    delta.vacuum(keep / 3_600_000)
    return Maintained(
        table=table.place,
        partitions=tuple(conditions),
        files_compacted=compacted,
        files_written=written,
        files_removed=_removed(delta, commits=table.begin().read_version - before),
        seconds=time.monotonic() - began,
    )


def _folders(table: Table, size: int) -> list[Folder]:
    from pyspark.sql import functions as F  # noqa: N812

    small = F.count(F.when(F.col("size") < size, 1))
    entries = F.sort_array(F.map_entries("partitionValues")).alias("values")
    found = table.files().groupBy(entries).agg(small.alias("small"), F.max("modificationTime").alias("newest"))
    return [_folder(row) for row in found.collect()]


def _folder(row: Any) -> Folder:
    return Folder({entry["key"]: entry["value"] for entry in row["values"]}, row["small"], row["newest"])


def _removed(delta: Any, *, commits: int) -> int:
    """How many files the last VACUUM removed: it writes that into the table's history, where landing goes on beside."""
    if commits < 1:
        return 0
    last = delta.history(commits).where("operation = 'VACUUM END'").select("operationMetrics").first()
    return 0 if last is None else int((last["operationMetrics"] or {}).get("numDeletedFiles", 0))


def _go_on_unless(given_up: Callable[[], bool]) -> None:
    if given_up():
        raise CancelledError


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
