"""The bench of the lake, with next to nothing to measure: every figure is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.bench.lake import BOUNDS, Sizes, measured
from penstock.broker import Embedded
from penstock.kafka.topics import Admin
from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TINY = Sizes(
    runs=1,
    messages=6_000,
    per_batch=2_000,
    small_batches=3,
    versions=20,
    memory_batches=8,
    latency_s=2,
    kills=1,
)


@pytest.mark.long
def test_a_tiny_bench_has_every_figure_and_leaves_no_topic(spark: SparkSession, penstock_broker: Embedded) -> None:
    kafka = KafkaSettings(bootstrap_servers=penstock_broker.bootstrap)

    report = measured(kafka, TINY, told=lambda _: None, session=spark)

    document = report.document()
    figures = document["figures"]
    assert isinstance(figures, dict)
    assert set(BOUNDS) <= set(figures)
    # The overhead is a difference, and on a busy machine chance decides on which side of nothing it is.
    assert all(value > 0 for name, value in figures.items() if name != "batch_overhead_ms")
    with Admin(kafka) as admin:
        assert not [name for name in admin.names() if name.startswith("penstock-bench-")]
