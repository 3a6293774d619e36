"""The group's offsets in Kafka: for people and lag tools. Nothing in Penstock reads them back as truth."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.kafka.reader import Reader
from penstock.values import TopicPartition

SHOW_EVERY_S = 1.0
# The broker forgets an offset that was not committed for long, also one that is still right.
REFRESH_EVERY_S = 3_600.0


class Display:
    """Commits positions that changed, at most once a second, and all of them now and then."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._shown: dict[TopicPartition, int] = {}
        self._show_at_s = 0.0
        self._refresh_at_s = time.monotonic() + REFRESH_EVERY_S

    def show(self, positions: Mapping[TopicPartition, int], *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self._show_at_s:
            return
        self._show_at_s = time.monotonic() + SHOW_EVERY_S
        if time.monotonic() >= self._refresh_at_s:
            self._refresh_at_s = time.monotonic() + REFRESH_EVERY_S
            self._shown.clear()
        changed = {place: at for place, at in positions.items() if self._shown.get(place) != at}
        if changed:
            self._reader.commit(changed)
            self._shown |= changed
