"""Which partitions the topics of a group have, as topics are made and grow."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.kafka.topics import Admin
from penstock.values import TopicPartition

LOOK_EVERY_S = 5.0


class Discovery:
    """Asks the broker now and then. What was seen once stays known: a topic that vanishes is no reason to let go."""

    def __init__(self, admin: Admin, topics: Sequence[str]) -> None:
        self._admin, self._topics = admin, tuple(topics)
        self._known: frozenset[TopicPartition] | None = None
        self._look_at_s = 0.0

    @property
    def known(self) -> frozenset[TopicPartition]:
        if self._known is None:
            self._known = self._look()
        return self._known

    def found_more(self) -> bool:
        """Whether partitions appeared since the last time; asks at most every few seconds."""
        before = self.known
        if time.monotonic() < self._look_at_s:
            return False
        self._known = before | self._look()
        return self._known != before

    def _look(self) -> frozenset[TopicPartition]:
        self._look_at_s = time.monotonic() + LOOK_EVERY_S
        found = self._admin.describe(self._topics)
        return frozenset(
            TopicPartition(topic, partition) for topic, info in found.items() for partition in range(info.partitions)
        )
