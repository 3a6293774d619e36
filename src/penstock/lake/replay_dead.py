"""Landing dead letters that are mended: shaped again as the options are now, each exactly once.

    dead letters   mark the good ones with a number ────────────────────────▶ remove those with that number
    tables                                          rows + number in one commit ↗

Whoever dies in between leaves marked dead letters. The next replay finishes them first, and a table that has the number
already takes nothing. The number is a `txn` of the table, beside the offsets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.crash import crash_point
from penstock.errors import NotFound, Refused, UsageError
from penstock.lake.landing import Landing, Target
from penstock.lake.offsets import Batch
from penstock.lake.operating import operating_session
from penstock.lake.options import LakeOptions
from penstock.lake.pipeline import Pipeline
from penstock.lake.rewind import REPLAYS, replay_naming
from penstock.lake.sink import Table
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MARK = "_replay"

_KEYS = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of the dead letters that were asked for."""

    finished: int
    """Rows that an earlier replay had left to land."""
    messages: int
    """Dead letters that are none any more."""
    rows: int
    """The rows that they became; a filter or a route may make fewer, or more, of them."""
    still_bad: int


def replay_dead(session: SparkSession, settings: Settings, options: LakeOptions, *, where: str = "") -> Replayed:
    """Land the dead letters that `where` selects and that are good now. Nobody else may land meanwhile.

    Raises NotFound without dead letters, UsageError for a condition that is none, and what landing raises.
    """
    own = operating_session(session)
    dead = Table(own, options.dead_letters) if options.dead_letters else None
    if dead is None or not dead.exists():
        raise NotFound(
            f"pipeline {options.name} has no dead letters",
            next_step="nothing was put aside yet" if dead else f'give [lake.{options.name}] dead_letters = "…"',
        )
    # A mended message that turns out bad after all must stop the replay: it is still among the dead letters.
    landing = Pipeline(replace(options, bad_messages="fail"), settings, session=own).prepared(own)
    landing.naming, landing.dead = replay_naming(options.app_id), None
    return _Replay(own, dead, landing).run(where)


class _Replay:
    def __init__(self, session: SparkSession, dead: Table, landing: Landing) -> None:
        self._session, self._dead, self._landing = session, dead, landing

    def run(self, where: str) -> Replayed:
        self._make_mark()
        finished = sum(self._finish(number) for number in self._left_behind())
        selected = self._selected(where)
        total = selected.count()
        good = self._good(selected)
        messages = good.count()
        if not messages:
            return Replayed(finished=finished, messages=0, rows=0, still_bad=total)
        number = self._next_number()
        self._mark(good, number)
        crash_point("lake.replay_marked")
        return Replayed(finished=finished, messages=messages, rows=self._finish(number), still_bad=total - messages)

    def _make_mark(self) -> None:
        if MARK not in self._dead.schema().names:
            place = self._dead.place.replace("`", "``")
            self._session.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS ({MARK} BIGINT)")

    def _left_behind(self) -> list[int]:
        from pyspark.sql import functions as F  # noqa: N812

        marked = self._letters().where(F.col(MARK).isNotNull()).select(MARK).distinct().collect()
        return sorted(row[0] for row in marked)

    def _selected(self, where: str) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions as F  # noqa: N812

        letters = self._letters().where(F.col(MARK).isNull())
        if not where:
            return letters
        try:
            return letters.where(F.expr(where))
        except (AnalysisException, ParseException) as failure:
            reason = next((line.strip() for line in str(failure).splitlines() if line.strip()), "")
            raise UsageError(
                f"--where {where!r} does not work: {reason}",
                next_step="dead letters have topic, partition, offset, timestamp, key, value, headers and error",
            ) from None

    def _good(self, letters: DataFrame) -> DataFrame:
        """Where they came from, of those that no table objects to; as values, so that a second look finds the same."""
        from pyspark.sql import functions as F  # noqa: N812

        frame = as_kafka(letters)
        good = letters.select(*_KEYS).distinct()
        for target in self._landing.targets:
            bad = self._shaped(target, frame).where(F.col("__error").isNotNull())
            good = good.join(bad.select(*(F.col(f"__{key}").alias(key) for key in _KEYS)), list(_KEYS), "left_anti")
        return good.localCheckpoint()

    def _shaped(self, target: Target, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        schema = target.table.schema()
        shape = target.shape(schema)
        if shape.learns and shape.shaped(frame).where(F.col("__unlearned")).limit(1).count():
            target.remember(schema, shape.learned(frame))
            shape = target.shape(schema)
        return shape.shaped(frame)

    def _next_number(self) -> int:
        used = [
            target.table.stored(self._landing.naming, [REPLAYS]).get(REPLAYS, -1) for target in self._landing.targets
        ]
        return max(int(time.time() * 1_000), max(used) + 1)

    def _mark(self, good: DataFrame, number: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        same = " AND ".join(f"letter.{key} = good.{key}" for key in _KEYS)
        merging = self._table().alias("letter").merge(good.alias("good"), same)
        merging.whenMatchedUpdate(condition=f"letter.{MARK} IS NULL", set={MARK: F.lit(number)}).execute()

    def _finish(self, number: int) -> int:
        """Land what has this number, and remove it from the dead letters; returns how many rows became of it."""
        marked = as_kafka(self._letters().where(_has(number)))
        self._landing.forget()
        batch = Batch(id=number, starts={REPLAYS: 0}, ends={REPLAYS: number + 1})
        try:
            landed = self._landing.land(marked, batch, initial={}, late=lambda: None)
        except Refused:
            # Mended letters became bad again: another release, other options. Where no table has them they go back.
            if not any(self._has_landed(target, number) for target in self._landing.targets):
                self._table().update(_has(number), {MARK: _no_mark()})
            raise
        crash_point("lake.replay_landed")
        self._table().delete(_has(number))
        crash_point("lake.replay_removed")
        return landed.rows

    def _has_landed(self, target: Target, number: int) -> bool:
        return target.table.stored(self._landing.naming, [REPLAYS]).get(REPLAYS, -1) >= number

    def _letters(self) -> DataFrame:
        """Those of our topics: other pipelines may put theirs into the same table."""
        from pyspark.sql import functions as F  # noqa: N812

        topics, letters = self._landing.options.topic, self._session.read.format("delta").load(self._dead.place)
        if topics.pattern:
            return letters.where(F.col("topic").rlike(f"^({topics.pattern})$"))
        return letters.where(F.col("topic").isin(*topics.names))

    def _table(self) -> Any:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._session, self._dead.place)


def as_kafka(letters: DataFrame) -> DataFrame:
    """Dead letters as Kafka's source would give them again."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
    return letters.select(*columns, F.lit(0).alias("timestampType"))


def _has(number: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(MARK) == F.lit(number)


def _no_mark() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(None).cast("bigint")
