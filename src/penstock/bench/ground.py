"""Where a bench works: topics of its own, deleted at its end, with messages in them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import DurationLike, TopicPartition, duration

TICKS_PER_S = 50

JAVA_BATCH_BYTES = 16_384
"""To a batch of a topic: what Kafka's own producer writes if nobody tells it otherwise."""
LARGE_BATCH_BYTES = 1_000_000
"""What librdkafka's does, if messages come faster than it can send."""


class Ground:
    """Every topic that is made under its prefix goes when the bench is over."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self.prefix = f"penstock-bench-{uuid.uuid4().hex[:8]}-"
        self._admin = Admin(kafka)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.delete([name for name in self._admin.names() if name.startswith(self.prefix)])
        self._admin.close()

    def settings(self, *, heartbeat: DurationLike = "2s", partitions: int = 8) -> Settings:
        """Settings with a coordination ledger that nobody else uses."""
        claims = ClaimsSettings(
            topic=f"claims-{uuid.uuid4().hex[:8]}",
            heartbeat=duration(heartbeat),
            partitions=partitions,
        )
        return Settings(kafka=self.kafka, claims=claims, topic_prefix=self.prefix)

    def topic(self, name: str, *, partitions: int) -> str:
        full = f"{self.prefix}{name}"
        self._admin.create([TopicSpec(name=full, partitions=partitions, config={}, reason="a bench")])
        return full

    def filled(self, name: str, *, partitions: int, **messages: Any) -> str:
        """A new topic with messages in it: see `fill`."""
        topic = self.topic(name, partitions=partitions)
        self.fill(topic, partitions=partitions, **messages)
        return topic

    def fill(
        self,
        topic: str,
        *,
        partitions: int,
        count: int,
        value: bytes,
        other: bytes | None = None,
        every: int = 1,
        batch_bytes: int = JAVA_BATCH_BYTES,
    ) -> None:
        """`count` messages, spread evenly; with `other`, every so-many-th of a partition is that.

        They are in batches that are all alike: else how quickly they are read would be the producer's luck.
        """
        batches = {"batch.size": str(batch_bytes), "linger.ms": "1000"}
        with Writer(replace(self.kafka, client={**self.kafka.client, **batches})) as writer:
            for number in range(count):
                is_other = other is not None and number // partitions % every == 0
                writer.send(topic, number % partitions, other if is_other else value)
            left = writer.flush(120_000)
        if left or writer.failures:
            raise ValueError(f"{left + writer.failures} of {count} messages could not be written")

    def last_offsets(self, topic: str, *, partitions: int) -> dict[TopicPartition, int]:
        bounds = self._admin.bounds([TopicPartition(topic, number) for number in range(partitions)])
        return {at: has.end - 1 for at, has in bounds.items()}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Topics that are made meanwhile go at once: else the broker would have more to look after with every run."""
        before = set(self._admin.names())
        try:
            yield
        finally:
            made = set(self._admin.names()) - before
            self._admin.delete([name for name in made if name.startswith(self.prefix)])

    @contextmanager
    def fed(self, topic: str, *, partitions: int, per_s: int, value: bytes) -> Iterator[None]:
        """Messages arrive at this rate, evenly over the partitions, for as long as this lasts."""
        stopping = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(topic, partitions, per_s, value, stopping))
        feeder.start()
        try:
            yield
        finally:
            stopping.set()
            feeder.join()

    def _feed(self, topic: str, partitions: int, per_s: int, value: bytes, stopping: threading.Event) -> None:
        began, sent = time.monotonic(), 0
        with Writer(self.kafka) as writer:
            while not stopping.wait(1 / TICKS_PER_S):
                due = int((time.monotonic() - began) * per_s)
                for number in range(sent, due):
                    writer.send(topic, number % partitions, value)
                sent = due
