"""Offsets for people and lag tools: what the table has, shown as the offsets of a Kafka group.

Nothing reads them back to decide anything. They go to Kafka after the table has them, never go back, and are told again
while nothing happens, because a group without members forgets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.crash import crash_point
from penstock.errors import PenstockError
from penstock.kafka.topics import Admin
from penstock.lake.offsets import Offsets
from penstock.observe import tell
from penstock.observe.events import LakeOffsetsNotShown
from penstock.values import TopicPartition

REPEAT_S = 60.0


class GroupOffsets:
    """Belongs to one thread."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin, self._group = admin, group
        self._shown: dict[TopicPartition, int] | None = None
        self._told_at = 0.0

    def show(self, stored: Offsets) -> None:
        """Commit the offsets behind the stored ones. A broker that refuses keeps nobody from landing."""
        try:
            shown = self._known(stored)
            rising = {each: last + 1 for each, last in stored.items() if last + 1 > shown.get(each, -1)}
            if rising:
                self._commit(rising)
        except PenstockError as failure:
            self._not_shown(failure)

    def repeat(self) -> None:
        """The same once more, when a minute has passed."""
        if self._shown and time.monotonic() - self._told_at >= REPEAT_S:
            try:
                self._commit(self._shown)
            except PenstockError as failure:
                self._not_shown(failure)

    def _known(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What was shown last, by us or by a run before us."""
        known = {} if self._shown is None else self._shown
        if new := [each for each in partitions if each not in known]:
            known.update(self._admin.group_offsets(self._group, new))
        self._shown = known
        return known

    def _commit(self, offsets: Offsets) -> None:
        self._admin.set_group_offsets(self._group, offsets)
        self._shown = {**(self._shown or {}), **offsets}
        self._told_at = time.monotonic()
        crash_point("lake.offsets_shown")

    def _not_shown(self, failure: PenstockError) -> None:
        # Not at once again: the next batch, or the next minute, comes soon enough.
        self._told_at = time.monotonic()
        tell(LakeOffsetsNotShown(group=self._group, reason=str(failure)))
