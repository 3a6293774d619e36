"""Ranges of a transactional holder that has expired: nobody may have them before its id was initialised."""

from __future__ import annotations

from collections.abc import Callable

from penstock.claims.range_telling import Teller
from penstock.claims.records import ProducersFenced, RangeFenced, Slot
from penstock.claims.slots import SlotState
from penstock.crash import crash_point


class RangeFencing:
    """Has ids initialised, and tells the log of it."""

    def __init__(self, teller: Teller, fence: Callable[[Slot, str], bool]) -> None:
        """`fence` begins at the first question, and says yes once, when it is done."""
        self._teller, self._fence = teller, fence
        self._begun_at: dict[tuple[Slot, str], int] = {}

    def sweep(self, slot: Slot, state: SlotState, *, expired_before_ms: int) -> None:
        client, instance = self._teller.sender
        for item in state.map:
            held = item.tenancy
            if held is None or held.producer is None or held.renewed_ms > expired_before_ms:
                continue
            if self._fenced_for(slot, held.producer, held.epoch) == held.epoch:
                self._teller.once(RangeFenced(slot, client, instance, held.epoch))
        if state.owner is None or state.renewed_ms <= expired_before_ms:
            for producer in sorted(state.producers):
                epoch = self._fenced_for(slot, producer, state.epoch)
                if epoch is not None:
                    self._teller.once(ProducersFenced(slot, client, instance, (producer,), epoch))

    def _fenced_for(self, slot: Slot, producer: str, epoch: int) -> int | None:
        """The epoch that was there when it began, once it is done: to a later one it is worth nothing."""
        begun_at = self._begun_at.setdefault((slot, producer), epoch)
        if not self._fence(slot, producer):
            return None
        del self._begun_at[slot, producer]
        crash_point("claims.range_fenced")
        return begun_at
