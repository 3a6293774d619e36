"""How long messages waited, and how long their handlers took: noted in runs of many, told a few times a second."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import methodcaller
from typing import NamedTuple

from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.hand import Hand
from penstock.queue.headers import marks_of
from penstock.queue.stretch import Stretch


class Worked(NamedTuple):
    """Messages of one lease that handlers are done with."""

    hand: Hand
    stretches: Sequence[Stretch]
    """The hand's: it may let go of them before anybody looks at this."""
    start: int
    """The first offset of them."""
    messages: int
    calls: int
    began_ms: int
    ended_ms: int
    """By our own clock."""


class Times:
    """`note` may be called by any thread."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._worked: deque[Worked] = deque()
        self.note = self._worked.append

    def report(self) -> None:
        """Tell what was noted, to whoever listens."""
        if not self._worked:
            return
        noted = [self._worked.popleft() for _ in range(len(self._worked))]
        if not events.are_heard(events.HandlersReturned, events.MessagesBegun):
            return
        wall_ms = (time.time_ns() - time.monotonic_ns()) // 1_000_000
        for one in noted:
            seconds = (one.ended_ms - one.began_ms) / 1_000 / one.calls
            tell(events.HandlersReturned(queue=self._queue, count=one.calls, seconds=seconds))
            due_ms = _due_ms(one)
            if due_ms is not None:
                waited_s = max(0.0, (wall_ms + one.began_ms - due_ms) / 1_000)
                tell(events.MessagesBegun(queue=self._queue, count=one.messages, seconds=waited_s))


def _due_ms(worked: Worked) -> int | None:
    """From when on the first of them could be handed out."""
    start = worked.start
    stretch = next((stretch for stretch in worked.stretches if stretch.end > start), None)
    if stretch is None:
        return None
    record = stretch.records[bisect_left(stretch.records, start, key=methodcaller("offset"))]
    marked_ms, cell = marks_of(record.headers()).due_ms or 0, worked.hand.cell_of(record.offset())
    due_ms = max(record.timestamp()[1], marked_ms, cell.due_ms)
    return due_ms if due_ms > 0 else None
