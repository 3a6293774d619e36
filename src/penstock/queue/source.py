"""The topic with the messages, on a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
        # Per partition, ahead of what is read: enough for a tenth of a second at full speed, and little memory.
        self.reader = Reader(replace(settings, client={"queued.min.messages": "10000", **settings.client}), group=group)
        self._told: dict[int, int] = {}
        """Up to where losses were told: a new assignment may begin at the same head, and find the same again."""

    def assign(self, heads: Mapping[int, int]) -> None:
        self.reader.assign({TopicPartition(self.topic, number): head for number, head in heads.items()})

    def read(self, count_max: int, timeout_ms: int) -> list[Received]:
        try:
            return self.reader.read(count_max, timeout_ms)
        except OffsetGone as gone:
            place = TopicPartition(gone.topic, gone.partition)
            start, _ = self.reader.bounds(place)
            lost_from = max(gone.offset, self._told.get(place.partition, 0))
            if lost_from < start:
                tell(events.DataLost(topic=self.topic, partition=place.partition, start=lost_from, end=start))
                self._told[place.partition] = start
            # Else the log ends before it: it is another topic under the same name, as will be found out.
            self.reader.seek(place, start)
            return []

    def position(self, partition: int) -> int:
        return self.reader.position(TopicPartition(self.topic, partition))

    def close(self) -> None:
        self.reader.close()
