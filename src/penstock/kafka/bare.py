"""The bare client, as a good programmer would use it without Penstock: what the benches compare with."""

from __future__ import annotations

from typing import Any

import confluent_kafka

from penstock.kafka.errors import ConnectionWatch
from penstock.kafka.properties import connect, properties
from penstock.settings import KafkaSettings


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
