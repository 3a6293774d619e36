"""The topic with the messages, on a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.errors import OffsetGone
from penstock.kafka.reader import Reader, Received
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition


class KafkaSource:
    """Reads from the heads on; what retention deleted there is passed over, and said."""

    def __init__(self, settings: KafkaSettings, topic: str, *, group: str) -> None:
        self.topic = topic
        # Per partition, ahead of what is read: two of the largest batches that clients write, and little memory.
        self.reader = Reader(replace(settings, client={"queued.min.messages": "20000", **settings.client}), group=group)
        self._deleted: dict[int, int] = {}

    def assign(self, heads: Mapping[int, int]) -> None:
        self.reader.assign({TopicPartition(self.topic, number): head for number, head in heads.items()})

    def read(self, count_max: int, timeout_ms: int) -> list[Received]:
        try:
            return self.reader.read(count_max, timeout_ms)
        except OffsetGone as gone:
            place = TopicPartition(gone.topic, gone.partition)
            start, _ = self.reader.bounds(place)
            if gone.offset < start:
                self._deleted[place.partition] = start
            # Else the log ends before it: it is another topic under the same name, as will be found out.
            self.reader.seek(place, start)
            return []

    def deleted(self) -> Mapping[int, int]:
        found, self._deleted = self._deleted, {}
        return found

    def position(self, partition: int) -> int:
        return self.reader.position(TopicPartition(self.topic, partition))

    def close(self) -> None:
        self.reader.close()
