"""A topic, a table and a pipeline between them, for tests on a real broker and a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from real_kafka import append, eventually, new_topic, unique

from penstock.kafka.topics import Admin
from penstock.lake.offsets import Naming
from penstock.lake.pipeline import Pipeline
from penstock.lake.sink import Table
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id BIGINT, name STRING"


class Ground:
    """Everything of its own: topic, app_id and folder."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, folder: Path, *, partitions: int = 2) -> None:
        self.spark, self.kafka = spark, kafka
        self.admin = Admin(kafka)
        self.topic = new_topic(self.admin, partitions=partitions)
        self.app_id = unique("app")
        self.table, self.dead = folder / "table", folder / "dead"
        self.checkpoint = self.table / "_checkpoints" / self.app_id
        self.naming = Naming(self.app_id, with_topic=False)

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def send(self, partition: int, ids: Iterable[int]) -> None:
        self.send_raw(partition, *(json.dumps({"id": each, "name": f"n{each}"}).encode() for each in ids))

    def send_raw(self, partition: int, *values: bytes) -> None:
        append(self.kafka, self.at(partition), *values)

    def pipeline(self, **options: object) -> Pipeline:
        """Without locks: what a table promises, it promises alone."""
        return Pipeline(self.options(**options), Settings(kafka=self.kafka), session=self.spark, lock=False)

    def options(self, **options: object) -> dict[str, object]:
        """Small batches, soon."""
        return {
            "name": "test",
            "app_id": self.app_id,
            "topic": self.topic,
            "table": str(self.table),
            "columns": COLUMNS,
            "allowed_latency": "200ms",
            "max_messages_per_batch": 1,
            "min_bytes_per_file": 1,
            **options,
        }

    def land(self, **options: object) -> Pipeline:
        """Land what is there and end. Raises what the pipeline ended with."""
        pipeline = self.pipeline(ends_at_latest_offsets=True, **options)
        pipeline.run()
        return pipeline

    def delta(self) -> Table:
        return Table(self.spark, str(self.table))

    def shown(self) -> dict[int, int]:
        """The offsets that lag tools see, by partition."""
        found = self.admin.group_offsets(self.app_id, [self.at(each) for each in range(self.partitions())])
        return {each.partition: offset for each, offset in found.items()}

    def partitions(self) -> int:
        return self.admin.describe([self.topic])[self.topic].partitions

    def close(self) -> None:
        self.admin.close()


def landed(pipeline: Pipeline, rows: int) -> None:
    """Wait until the pipeline has landed so many rows in all, or has ended."""
    eventually(lambda: pipeline.progress.rows >= rows or not pipeline.is_running, within_s=120)
    assert pipeline.failure is None
    assert pipeline.progress.rows == rows


def ended(pipeline: Pipeline) -> BaseException | None:
    assert pipeline.wait(120), "the pipeline did not end"
    return pipeline.failure
