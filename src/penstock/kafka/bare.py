"""The bare client, as a good programmer would use it without Penstock: what the benches compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka

from penstock.kafka.errors import ConnectionWatch
from penstock.kafka.properties import connect, properties
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition


class BareProducer:
    """An idempotent producer, tuned for throughput."""

    def __init__(self, settings: KafkaSettings) -> None:
        config = properties(
            settings,
            preferred={"linger.ms": 5, "queue.buffering.max.messages": 500_000},
            fixed={"enable.idempotence": True, "acks": "all"},
        )
        self._client: Any = connect(confluent_kafka.Producer, config, ConnectionWatch(settings.bootstrap_servers))

    def send_all(self, topic: str, partition: int, value: bytes, count: int) -> None:
        """Send the value `count` times and wait until all are acknowledged."""
        produce, poll = self._client.produce, self._client.poll
        for number in range(count):
            while True:
                try:
                    produce(topic, value, partition=partition)
                    break
                except BufferError:
                    poll(0.01)
            if number % 1_000 == 0:
                poll(0)
        self._client.flush(120)


class BareConsumer:
    """A consumer of given partitions from their beginning, tuned for throughput."""

    def __init__(self, settings: KafkaSettings, partitions: Sequence[TopicPartition]) -> None:
        config = properties(
            settings,
            preferred={"fetch.queue.backoff.ms": 10},
            fixed={"group.id": "penstock-bare", "enable.auto.commit": False, "enable.auto.offset.store": False},
        )
        self._client: Any = connect(confluent_kafka.Consumer, config, ConnectionWatch(settings.bootstrap_servers))
        self._client.assign([confluent_kafka.TopicPartition(*each, 0) for each in partitions])

    def counts(self, batch_max: int) -> Iterator[int]:
        """How many records each batch has, for as long as any come."""
        while records := self._client.consume(batch_max, 10):
            yield sum(record.error() is None for record in records)

    def close(self) -> None:
        self._client.close()
