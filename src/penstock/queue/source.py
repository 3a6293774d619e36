"""The topic with the messages, on a broker."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import OffsetGone
from penstock.kafka.reader import Reader, Received
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition


class KafkaSource:
    """Reads from the heads on. What retention deleted there was never anybody's: it is told, and passed over."""

    def __init__(self, settings: KafkaSettings, topic: str, *, group: str) -> None:
        self.topic = topic
        self.reader = Reader(settings, group=group)

    def assign(self, heads: Mapping[int, int]) -> None:
        self.reader.assign({TopicPartition(self.topic, number): head for number, head in heads.items()})

    def read(self, count_max: int, timeout_ms: int) -> list[Received]:
        try:
            return self.reader.read(count_max, timeout_ms)
        except OffsetGone as gone:
            place = TopicPartition(gone.topic, gone.partition)
            start, _ = self.reader.bounds(place)
            tell(events.DataLost(topic=self.topic, partition=place.partition, start=gone.offset, end=start))
            self.reader.seek(place, start)
            return []

    def position(self, partition: int) -> int:
        return self.reader.position(TopicPartition(self.topic, partition))

    def close(self) -> None:
        self.reader.close()
