"""The lake's sink next to Spark's own: the same topic, the same columns, the same session."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.bench.lake_ground import COLUMNS, PATIENCE_S, LakeGround, Told, commits
from penstock.bench.report import median_ratio
from penstock.lake.source import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOOK_S = 0.05
_ORIGIN = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Course:
    """How a sink went through a topic: the seconds of each batch behind the first, and the CPU seconds of them all."""

    spans_s: list[float]
    cpu_s: float

    @property
    def seconds(self) -> float:
        return sum(self.spans_s)


def measure_sinks(
    lake: LakeGround, topic: str, *, count: int, per_batch: int, runs: int, told: Told
) -> dict[str, float]:
    """Rows/s from the first commit to the last, which are the same batches for all three."""
    ways: dict[str, Callable[[], Course]] = {
        "ours": lambda: through_penstock(lake, topic, per_batch=per_batch),
        "delta": lambda: through_spark(lake, topic, per_batch=per_batch, form="delta"),
        "parquet": lambda: through_spark(lake, topic, per_batch=per_batch, form="parquet"),
    }
    told("sinks, warming up")
    for run in ways.values():
        run()
    found = in_turns(ways, runs, told=lambda run: told(f"sinks, {run}"))
    landed = count - per_batch
    ours, delta, parquet = (found[name] for name in ways)
    cpu_s = statistics.median(each.cpu_s for each in ours)
    return {
        "sink_ratio": median_ratio([each.seconds for each in delta], [each.seconds for each in ours]),
        "sink_cpu_ratio": median_ratio([each.cpu_s for each in ours], [each.cpu_s for each in delta]),
        "parquet_ratio": median_ratio([each.seconds for each in parquet], [each.seconds for each in ours]),
        "cpu_s_per_million": cpu_s / landed * 1_000_000,
        "spark_cpu_s_per_million": statistics.median(each.cpu_s for each in delta) / landed * 1_000_000,
        "rows_per_s": landed / statistics.median(each.seconds for each in ours),
        "messages": count,
    }


def in_turns(ways: dict[str, Callable[[], Course]], runs: int, *, told: Told) -> dict[str, list[Course]]:
    """All ways, there and back, so that what disturbs the machine for a while disturbs neighbours alike."""
    found: dict[str, list[Course]] = {name: [] for name in ways}
    for number in range(runs):
        told(f"run {number + 1} of {runs}")
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            found[name].append(ways[name]())
    return found


def through_penstock(lake: LakeGround, topic: str, *, per_batch: int, into: Path | None = None) -> Course:
    """Into a new table, or into this one."""
    with lake.place("ours") as new, CpuMeter(lake) as meter:
        place = into or new
        versions = len(commits(place / "_delta_log"))
        lake.pipeline(
            topic,
            place,
            ends_at_latest_offsets=True,
            max_messages_per_batch=per_batch,
            max_offsets_per_trigger=per_batch,
        ).run()
        # A new table has a version 0 without rows.
        return _course(commits(place / "_delta_log")[versions or 1 :], meter)


def through_spark(lake: LakeGround, topic: str, *, per_batch: int, form: str) -> Course:
    log = {"delta": "_delta_log", "parquet": "_spark_metadata"}[form]
    with lake.place(form) as place, CpuMeter(lake) as meter:
        reader = lake.session.readStream.format("kafka").options(**source_options(lake.ground.kafka, {}))
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        rows = _parsed(reader.option("maxOffsetsPerTrigger", per_batch).load())
        writer = rows.writeStream.format(form).option("path", str(place))
        writer = writer.option("checkpointLocation", f"{place}/_checkpoint").trigger(availableNow=True)
        query = writer.start()
        if not query.awaitTermination(int(PATIENCE_S)):
            query.stop()
            raise ValueError(f"the {form} sink did not end in {PATIENCE_S:g} s")
        return _course(commits(place / log), meter)


def _parsed(frame: DataFrame) -> DataFrame:
    """The same columns, as whoever uses Spark alone would make them: nobody looks for bad messages."""
    from pyspark.sql import functions as F  # noqa: N812

    message = F.from_json(F.col("value").cast("string"), COLUMNS).alias("message")
    return frame.select(message, *_ORIGIN).select("message.*", *(F.col(name).alias(f"_{name}") for name in _ORIGIN))


@dataclass
class CpuMeter:
    """Looks at the CPU seconds all the time, so that they can be told of any moment of the run."""

    lake: LakeGround
    _looks: list[tuple[float, float]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stopping = threading.Event()
        self._looks.append((time.time(), self.lake.cpu_s()))
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def at(self, moment: float) -> float:
        """CPU seconds at this `time.time()`, between two looks in proportion."""
        for (before, low), (after, high) in itertools.pairwise((*self._looks, (time.time(), self.lake.cpu_s()))):
            if before <= moment <= after:
                return low + (high - low) * (moment - before) / (after - before)
        raise ValueError("nobody looked at the CPU then")

    def _look(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self._looks.append((time.time(), self.lake.cpu_s()))


def _course(log: list[Path], meter: CpuMeter) -> Course:
    moments = [commit.stat().st_mtime for commit in log]
    spans = [later - earlier for earlier, later in itertools.pairwise(moments)]
    return Course(spans, meter.at(moments[-1]) - meter.at(moments[0]))
