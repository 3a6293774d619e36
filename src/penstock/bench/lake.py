"""`penstock bench lake`: landing next to Spark's own sinks, and what time, versions, memory and a kill cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.ground import Ground
from penstock.bench.lake_batches import measure_batches, measure_memory
from penstock.bench.lake_course import measure_files, measure_latency, measure_recovery
from penstock.bench.lake_ground import LakeGround, Told
from penstock.bench.lake_sinks import measure_sinks
from penstock.bench.report import BenchReport, Bound, Within
from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOUNDS: dict[str, Bound | Within] = {
    "sink_ratio": Bound("at least", 0.95),
    "sink_cpu_ratio": Bound("at most", 1.05),
    "parquet_ratio": Bound("at least", 0.65),
    "batch_overhead_ms": Bound("at most", 150),
    "latency_p50_s": Bound("at most", 3.5),
    "latency_p99_s": Bound("at most", 6),
    "versions_cost": Bound("at most", 1.2),
    "memory_growth": Bound("at most", 1.1),
    "file_size_ratio": Within(0.8, 2.5),
    "cpu_s_per_million": Bound("at most", 25),
    "recovery_s": Bound("at most", 30),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    runs: int
    messages: int
    per_batch: int
    """Messages per batch next to Spark's own sinks; the first batch only says that everything is set up."""
    small_batches: int
    versions: int
    memory_batches: int
    latency_s: int
    kills: int


FULL = Sizes(
    runs=3,
    messages=1_250_000,
    per_batch=250_000,
    small_batches=50,
    versions=1_000,
    memory_batches=200,
    latency_s=60,
    kills=3,
)
QUICK = Sizes(
    runs=1,
    messages=300_000,
    per_batch=100_000,
    small_batches=20,
    versions=1_000,
    memory_batches=60,
    latency_s=15,
    kills=1,
)


def measure(kafka: KafkaSettings, *, quick: bool, told: Told) -> BenchReport:
    return measured(kafka, QUICK if quick else FULL, told=told)


def measured(kafka: KafkaSettings, sizes: Sizes, *, told: Told, session: SparkSession | None = None) -> BenchReport:
    """All figures, in a Spark session as the lake has it by default, or in this one."""
    with Ground(kafka) as ground, LakeGround(ground, session) as lake:
        told(f"writing {sizes.messages:,} messages")
        topic = lake.topic("orders", sizes.messages)
        figures = {
            **measure_sinks(lake, topic, count=sizes.messages, per_batch=sizes.per_batch, runs=sizes.runs, told=told),
            **measure_batches(lake, batches=sizes.small_batches, versions=sizes.versions, runs=sizes.runs, told=told),
            **measure_latency(lake, seconds=sizes.latency_s, told=told),
            **measure_memory(lake, batches=sizes.memory_batches, told=told),
            **measure_files(lake, topic, count=sizes.messages, told=told),
            **measure_recovery(lake, runs=sizes.kills, told=told),
        }
    return BenchReport(bench="lake", figures=figures, bounds=BOUNDS, runs=sizes.runs)
