"""Which partitions the topics of a group have, as topics are made, grow and vanish."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from penstock.errors import Refused, TransientError
from penstock.kafka.topics import Admin, TopicInfo
from penstock.observe import events
from penstock.observe.events import tell
from penstock.values import TopicPartition

LOOK_EVERY_S = 5.0
LOOK_FOR_MISSING_EVERY_S = 1.0
TELL_AGAIN_S = 30.0

Mend = Callable[[str], str]
"""What to do about the positions in a topic that is not the one that we knew."""

log = logging.getLogger("penstock.claims")


class Discovery:
    """Asks the broker now and then. What was seen once stays known: a topic that vanishes is no reason to let go."""

    def __init__(self, admin: Admin, topics: Sequence[str], *, group: str, mend: Mend) -> None:
        self._admin, self._topics, self._group, self._mend = admin, tuple(topics), group, mend
        self._known: frozenset[TopicPartition] = frozenset()
        self._ids: dict[str, str] = {}
        self._missing: dict[str, float] = {}
        self._look_at_s = 0.0

    @property
    def known(self) -> frozenset[TopicPartition]:
        if not self._look_at_s:
            self._look()
        return self._known

    @property
    def missing(self) -> frozenset[str]:
        """The topics that did not exist at the last look."""
        return frozenset(self._missing)

    def found_more(self) -> bool:
        """Whether partitions appeared since the last time; asks at most every few seconds.

        Raises Refused for a topic that was deleted and made anew.
        """
        before = self.known
        if time.monotonic() >= self._look_at_s:
            try:
                self._look()
            except TransientError as trouble:
                log.warning("topics cannot be looked at: %s", trouble)
        return self._known != before

    def hurry(self) -> None:
        """Something is odd about a topic: look with the next question."""
        self._look_at_s = min(self._look_at_s, time.monotonic())

    def _look(self) -> None:
        self._look_at_s = time.monotonic() + LOOK_EVERY_S
        found = self._admin.describe(self._topics)
        if missing := [topic for topic in self._topics if topic not in found]:
            self._look_at_s = time.monotonic() + LOOK_FOR_MISSING_EVERY_S
        self._tell_missing(missing)
        for topic in found.values():
            self._check_same(topic)
        self._known |= {
            TopicPartition(topic, partition) for topic, info in found.items() for partition in range(info.partitions)
        }

    def _tell_missing(self, missing: list[str]) -> None:
        now_s = time.monotonic()
        told = {topic: self._missing.get(topic, -TELL_AGAIN_S) for topic in missing}
        for topic, at_s in told.items():
            if now_s - at_s >= TELL_AGAIN_S:
                tell(events.TopicMissing(group=self._group, topic=topic))
                told[topic] = now_s
        self._missing = told

    def _check_same(self, topic: TopicInfo) -> None:
        """Raises Refused, at every look: under its old name it is another topic, whose offsets mean something else."""
        old_id = self._ids.setdefault(topic.name, topic.topic_id)
        if topic.topic_id != old_id:
            tell(events.TopicRecreated(group=self._group, topic=topic.name, old_id=old_id, new_id=topic.topic_id))
            raise Refused(
                f"topic {topic.name} was deleted and made anew while group {self._group} consumed it: "
                "the group's positions belong to records that are gone",
                next_step=self._mend(topic.name),
            )
