"""Where the partitions of a group end: asked of the broker now and then, for the health of its members."""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.errors import NotFound, TransientError
from penstock.kafka.topics import Admin
from penstock.values import Duration, TopicPartition


class Ends:
    """Asks at most every so often; an answer that does not come is no reason for alarm."""

    def __init__(self, admin: Admin, *, every: Duration) -> None:
        self._admin, self._every_s = admin, every.seconds
        self._look_at_s = 0.0

    def look(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int] | None:
        """How far each may be read; none if it is too early to ask again, or nobody answers."""
        if time.monotonic() < self._look_at_s:
            return None
        self._look_at_s = time.monotonic() + self._every_s
        try:
            return {place: bounds.stable_end for place, bounds in self._admin.bounds(places).items()}
        except (TransientError, NotFound):
            return None
