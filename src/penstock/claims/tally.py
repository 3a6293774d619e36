"""How many slots of a group are fresh, silent, free or paused, as a member sees them: what the metric shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from penstock.claims.look import Shown, slot_seen
from penstock.claims.placement import partition_of
from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.ledger.tail import Tail
from penstock.observe import events
from penstock.observe.events import tell

COUNT_EVERY_S = 1.0


class Tally:
    """Counts now and then, and tells what changed."""

    def __init__(self, group: str, *, partitions: int) -> None:
        """`partitions`: of the coordination ledger."""
        self._group, self._partitions = group, partitions
        self._told: dict[Shown, int] = {}
        self._count_at_s = 0.0

    def count(self, tail: Tail[Claims], slots: Iterable[Slot]) -> None:
        """Call it often, in the member's thread; it looks once a second."""
        if time.monotonic() < self._count_at_s:
            return
        self._count_at_s = time.monotonic() + COUNT_EVERY_S
        wall_ms = time.time_ns() // 1_000_000
        self._tell(Counter(self._state(tail, slot, wall_ms) for slot in slots))

    def _state(self, tail: Tail[Claims], slot: Slot, wall_ms: int) -> Shown:
        number = partition_of(slot, self._partitions)
        try:
            return slot_seen({number: tail.fold(number)}, slot, wall_ms, partition=number).state
        except KeyError:  # just discovered; the member does not follow it yet
            return Shown.FREE

    def _tell(self, counts: Counter[Shown]) -> None:
        for state in Shown:
            if self._told.get(state) != counts[state]:
                self._told[state] = counts[state]
                tell(events.ClaimsCounted(group=self._group, state=state.value, count=counts[state]))
