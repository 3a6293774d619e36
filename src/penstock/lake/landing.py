"""Landing one micro-batch: every table gets its rows and its offsets in one commit, or nothing.

Files first, then the dead letters, then the tables. Whatever dies in between leaves files that no table knows, or dead
letters that are not written a second time; the tables are what a new run begins from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from penstock.crash import crash_point
from penstock.errors import InvariantBroken, Refused
from penstock.lake.offsets import Batch, Naming, Offsets, Plan, plan
from penstock.lake.options import LakeOptions
from penstock.lake.sink import ChangedMeanwhile, Table, Transaction, Written
from penstock.lake.stored import StoredOffsets
from penstock.observe import tell
from penstock.observe.events import LakeBadMessages, LakeLanded

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

# How often a batch is made anew: for a table that was changed meanwhile, or for messages of a new kind.
TRIES = 20
# Below so many messages one task is as quick as several, and leaves one file.
MESSAGES_PER_TASK = 50_000

# Smaller files than this say more about their own overhead than about the rows.
_TELLING_ROWS, _TELLING_BYTES = 1_000, 50_000

DEAD_LETTERS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, error STRING"
)


Late = Callable[[], "DataFrame | None"]
"""Messages of the batch that are not in its frame, once the frame was read."""


class Shaper(Protocol):
    """Makes rows of Kafka's frame: the table's columns, the service columns, and `__error` where there is no row."""

    @property
    def columns(self) -> StructType: ...
    @property
    def new_columns(self) -> Sequence[StructField]: ...
    @property
    def learns(self) -> bool: ...
    def shaped(self, frame: DataFrame) -> DataFrame: ...
    def learned(self, frame: DataFrame) -> Self: ...


class Learned(ChangedMeanwhile):
    """The batch has messages of a kind that was not met before; with what was learned it is shaped again."""


@dataclass
class Target:
    """One table of a pipeline: what it takes, in which form, and how far it is."""

    options: LakeOptions
    table: Table
    message: StructType
    """What a message has."""
    shape_for: Callable[[StructType], Shaper]
    """The shape for a table of this schema."""
    stored: StoredOffsets = field(init=False)

    _shape: tuple[StructType, Shaper] | None = None

    def shape(self, schema: StructType) -> Shaper:
        if self._shape is None or self._shape[0] != schema:
            self.remember(schema, self.shape_for(schema))
        assert self._shape is not None
        return self._shape[1]

    def remember(self, schema: StructType, shape: Shaper) -> None:
        check_types(schema, shape.columns)
        self._shape = (schema, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """What became of a batch."""

    batch: Batch
    versions: tuple[int, ...]
    """The new version of each table that got something."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    bad: int = 0
    seconds: float = 0.0


@dataclass
class _Opened:
    """A transaction under way."""

    target: Target
    transaction: Transaction
    schema: StructType
    plan: Plan
    written: Written | None = None
    bad: int = 0


@dataclass
class Landing:
    """Lands batches, one at a time, in the thread that Spark calls from."""

    options: LakeOptions
    naming: Naming
    targets: Sequence[Target]
    dead: Table | None
    cores: int
    bytes_per_row: float | None = None
    """What a row takes in a file: at first as the table has it, then as the last batches had it."""
    _dead_stored: StoredOffsets | None = field(init=False, default=None)

    def forget(self) -> None:
        """Ask the tables anew: a stream begins again, and nobody knows what became of its last commit."""
        for target in self.targets:
            target.stored = StoredOffsets(target.table, self.naming)
        self._dead_stored = None if self.dead is None else StoredOffsets(self.dead, self.naming.dead())

    def land(self, frame: DataFrame, batch: Batch, *, initial: Offsets, late: Late) -> Landed:
        """Raises Gap, Restored, Fenced, or Refused for a bad message that is to stop the pipeline."""
        began = time.monotonic()
        if self.options.dedup:
            # Spark's state must be gone through once, however often the rows are.
            frame = frame.persist()
        try:
            landed = self._landed_at_last(frame, batch, initial, late)
        finally:
            if self.options.dedup:
                frame.unpersist()
        return landed(time.monotonic() - began)

    def _landed_at_last(
        self, frame: DataFrame, batch: Batch, initial: Offsets, late: Late
    ) -> Callable[[float], Landed]:
        for _ in range(TRIES):
            try:
                return self._land(frame, batch, initial, late)
            except ChangedMeanwhile as changed:
                # The rows were made in another form than they should have; tables that have the batch already skip it.
                failure = changed
        raise failure

    def _land(self, frame: DataFrame, batch: Batch, initial: Offsets, late: Late) -> Callable[[float], Landed]:
        opened = [self._open(target, batch, initial) for target in self.targets]
        moving = [each for each in opened if each.plan.versions]
        for each in moving:
            self._write(each, frame)
        frames = [frame]
        if not moving and self.options.dedup:
            # Nothing to land, but Spark's state is a link longer with every batch, and a missing one breaks the chain.
            frame.count()
        if moving and (others := late()) is not None:
            frames.append(others)
            for each in moving:
                self._write(each, others)
        crash_point("lake.files_written")
        bad = max((each.bad for each in moving), default=0)
        if bad:
            self._deal_with_bad(frames, batch, moving, bad)
        versions = tuple(self._commit(each, batch) for each in moving)
        crash_point("lake.committed")
        return lambda seconds: self._landed(batch, moving, versions, bad, seconds)

    def _open(self, target: Target, batch: Batch, initial: Offsets) -> _Opened:
        transaction = target.table.begin()
        stored = target.stored.read(transaction, batch.ends)
        return _Opened(target, transaction, transaction.schema, plan(batch, stored=stored, initial=initial))

    def _write(self, opened: _Opened, frame: DataFrame) -> None:
        """The one action: rows to files, and on the way bad messages are counted, and those of an unknown kind."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        target, transaction = opened.target, opened.transaction
        shape = target.shape(opened.schema)
        if shape.new_columns and opened.written is None:
            transaction.add_columns(shape.new_columns)
        counted, learns = Observation(), shape.learns
        unknown = F.count_if("__unlearned") if learns else F.lit(0)
        rows = new_rows(shape.shaped(frame), opened.plan.above)
        rows = rows.observe(counted, F.count("__error").alias("bad"), unknown.alias("unknown"))
        rows = rows.where(F.col("__error").isNull()).select(*(F.col(f"`{name}`") for name in shape.columns.names))
        written = transaction.write(
            rows.coalesce(self._tasks(opened.plan.messages)),
            compression=target.options.compression,
            rows_per_file=self._rows_per_file(),
        )
        seen = counted.get
        if learns and seen["unknown"]:
            target.remember(opened.schema, shape.learned(frame))
            raise Learned(f"{seen['unknown']} messages are of a new kind")
        opened.bad += int(seen["bad"])
        opened.written = written if opened.written is None else opened.written + written
        if written.rows >= _TELLING_ROWS and written.bytes >= _TELLING_BYTES:
            self.bytes_per_row = written.bytes / written.rows

    def _shaped(self, opened: _Opened, frame: DataFrame) -> DataFrame:
        return new_rows(opened.target.shape(opened.schema).shaped(frame), opened.plan.above)

    def _tasks(self, messages: int) -> int:
        """As many tasks as there are files worth writing, and as the work is worth."""
        expected = messages * (self.bytes_per_row or 0) / self.options.min_bytes_per_file
        return max(1, min(self.cores, max(round(expected), -(-messages // MESSAGES_PER_TASK))))

    def _rows_per_file(self) -> int:
        return round(2 * self.options.min_bytes_per_file / self.bytes_per_row) if self.bytes_per_row else 0

    def _deal_with_bad(self, frames: list[DataFrame], batch: Batch, moving: list[_Opened], bad: int) -> None:
        match self.options.on_bad_messages:
            case "fail":
                raise self._bad_message(frames, moving, bad)
            case "skip":
                tell(LakeBadMessages(pipeline=self.options.name, count=bad, version=-1))
            case "quarantine":
                self._bury(frames, batch, moving)

    def _bury(self, frames: list[DataFrame], batch: Batch, moving: list[_Opened]) -> None:
        """A second reading, for the bad ones alone. Their table has offsets of its own: it may be ahead of others."""
        assert self.dead is not None
        assert self._dead_stored is not None
        transaction = self.dead.begin()
        stored = self._dead_stored.read(transaction, batch.ends)
        versions = {
            each: end - 1
            for each, end in batch.ends.items()
            if end > batch.starts[each] and end - 1 > stored.get(each, -1)
        }
        rows = self._bad(frames, moving).select(*dead_columns())
        if any(stored.get(each, -1) >= start for each, start in batch.starts.items()):
            # Some are there from an earlier try. Not by their offsets: the table may have got another form since, and
            # then others are bad.
            rows = rows.join(self.dead.rows(transaction.read_version), ["topic", "partition", "offset"], "left_anti")
        written = transaction.write(rows.coalesce(1), compression=self.options.compression)
        if not versions and not written.rows:
            return
        crash_point("lake.dead_letters_written")
        version = transaction.commit(self.naming.dead(), versions, batch_id=batch.id, written=written)
        self._dead_stored.committed(version, read_version=transaction.read_version, versions=versions)
        crash_point("lake.dead_letters_committed")
        tell(LakeBadMessages(pipeline=self.options.name, count=written.rows, version=version))

    def _bad(self, frames: list[DataFrame], moving: list[_Opened]) -> DataFrame:
        """The messages that are bad for any of the tables, each once."""
        from pyspark.sql import functions as F  # noqa: N812

        service = [F.col(name) for name in SERVICE]
        every = [
            self._shaped(each, frame).where(F.col("__error").isNotNull()).select(*service)
            for each in moving
            for frame in frames
        ]
        bad = every[0]
        for other in every[1:]:
            bad = bad.unionByName(other)
        return bad if len(every) == 1 else bad.dropDuplicates(["__topic", "__partition", "__offset"])

    def _bad_message(self, frames: list[DataFrame], moving: list[_Opened], bad: int) -> Refused:
        first = self._bad(frames, moving).select("__topic", "__partition", "__offset", "__error").first()
        where = (
            f"{first['__topic']}/{first['__partition']} offset {first['__offset']}: {first['__error']}"
            if first
            else "gone"
        )
        others = f" (and {bad - 1} more in the same batch)" if bad > 1 else ""
        return Refused(
            f"a message cannot be landed, {where}{others}",
            next_step=f'give [lake.{self.options.name}] dead_letters = "…" to have such messages put aside',
        )

    def _commit(self, opened: _Opened, batch: Batch) -> int:
        transaction, versions = opened.transaction, opened.plan.versions
        version = transaction.commit(self.naming, versions, batch_id=batch.id, written=opened.written)
        opened.target.stored.committed(version, read_version=transaction.read_version, versions=versions)
        crash_point("lake.table_committed")
        return version

    def _landed(
        self, batch: Batch, moving: list[_Opened], versions: tuple[int, ...], bad: int, seconds: float
    ) -> Landed:
        for each, version in zip(moving, versions, strict=True):
            rows = each.written.rows if each.written else 0
            tell(
                LakeLanded(
                    pipeline=self.options.name,
                    table=each.target.table.place,
                    batch=batch.id,
                    version=version,
                    rows=rows,
                    bad=each.bad,
                    seconds=seconds,
                )
            )
        written = [each.written for each in moving if each.written]
        return Landed(
            batch=batch,
            versions=versions,
            rows=sum(each.rows for each in written),
            bytes=sum(each.bytes for each in written),
            files=sum(each.count for each in written),
            bad=bad,
            seconds=seconds,
        )


SERVICE = ("__topic", "__partition", "__offset", "__timestamp", "__key", "__value", "__headers", "__error")


def new_rows(rows: DataFrame, above: Offsets) -> DataFrame:
    """Without what the table has already; where it has nothing of the batch, the frame is left alone."""
    from pyspark.sql import functions as F  # noqa: N812

    for (topic, partition), last in above.items():
        is_there = (F.col("__topic") == topic) & (F.col("__partition") == partition) & (F.col("__offset") <= last)
        rows = rows.where(~is_there)
    return rows


def check_types(table: StructType, columns: StructType) -> None:
    """Delta writes whatever it is given, and a table with a long in an int column is unreadable.

    Raises InvariantBroken: making the shape should have seen to it.
    """
    of_table = {each.name: each.dataType.simpleString() for each in table.fields}
    for each in columns.fields:
        ours, theirs = each.dataType.simpleString(), of_table.get(each.name)
        if theirs is not None and theirs != ours:
            raise InvariantBroken(f"column {each.name} is {theirs}, and its rows would have {ours}")


def dead_columns() -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    return [F.col(name).alias(name.removeprefix("__")) for name in SERVICE]
