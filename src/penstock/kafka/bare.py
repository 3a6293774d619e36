"""The bare client, as a good programmer would use it without Penstock: what the benches compare with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

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

    def reads(self, batch_max: int) -> Iterator[int]:
        """The same, with value and offset of each record looked at, as whoever does something with them has to."""
        while records := self._client.consume(batch_max, 10):
            yield _looked_at(records)

    def close(self) -> None:
        self._client.close()


class BareShareConsumer:
    """One member of a share group that reads a topic from its beginning, and acknowledges each record by itself."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        _begin_at_start(settings, group)
        config = properties(
            settings,
            # It warns each time that it is a preview.
            preferred={"log_level": 3},
            fixed={"group.id": group, "share.acknowledgement.mode": "explicit"},
        )
        self._client: Any = connect(confluent_kafka.ShareConsumer, config, ConnectionWatch(settings.bootstrap_servers))
        self._client.subscribe([topic])

    def reads(self, patience_s: float) -> Iterator[int]:
        """How many records each batch has, for as long as any come. Acks go with the next poll, as is usual."""
        poll, acknowledge = self._client.poll, self._client.acknowledge
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            records = poll(1)
            count = _looked_at(records)
            for record in records:
                acknowledge(record)
            if count:
                deadline = time.monotonic() + patience_s
                yield count

    def close(self) -> None:
        self._client.close()


def _looked_at(records: Iterable[Any]) -> int:
    count = 0
    for record in records:
        if record.error() is None:
            record.value(), record.offset()
            count += 1
    return count


def _begin_at_start(settings: KafkaSettings, group: str) -> None:
    """Where a share group begins is a setting of the broker, not of its members."""
    config = properties(settings, preferred={}, fixed={})
    client: Any = connect(AdminClient, config, ConnectionWatch(settings.bootstrap_servers))
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(settings.request_timeout.seconds)
