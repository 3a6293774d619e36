"""Replay of ranges: blocks of offsets inside a slot, each with a holder and an epoch of its own.

The map itself is in `intervals.py`; here is what each record does to it, and when a lease has run out.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.claims.intervals import Interval, Status, Tenancy
from penstock.claims.records import (
    RangeAcked,
    RangeBuried,
    RangeClaimed,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
)
from penstock.claims.slots import NO_OFFSETS, OFFSET_MAX, Slots, SlotState
from penstock.ledger.machine import ACCEPTED, UNCHANGED, Verdict, ignored

NOT_HELD = ignored("the sender holds no such range under this epoch")


class RangeRules(Slots):
    """What each record of ranges does."""

    def _on_range_claimed(self, record: RangeClaimed, offset: int, clock_ms: int) -> Verdict:
        paused = self._paused_for(record.slot.group, record.client, clock_ms)
        if paused is not None:
            return paused
        state = self.slot(record.slot)
        valid = self.valid_owner(state, clock_ms)
        if valid is not None:
            return ignored(f"owned by {valid[0]}/{valid[1]}")
        if state.producers:
            return ignored(f"not fenced yet: {', '.join(sorted(state.producers))}")
        if record.n < 1 or (record.start or 0) > OFFSET_MAX:
            return NO_OFFSETS
        tenancy = Tenancy(
            owner=(record.client, record.instance), epoch=offset, renewed_ms=clock_ms, producer=record.producer
        )
        if not self._grant(record, state, tenancy, clock_ms):
            return ignored("no offset is free within the window")
        state.owner, state.intent, state.epoch = None, None, offset
        self.slots[record.slot] = state
        return ACCEPTED

    def _grant(self, record: RangeClaimed, state: SlotState, tenancy: Tenancy, clock_ms: int) -> bool:
        """Give one block: the first that somebody left, else the next at the frontier."""
        candidate = self._candidate(state, clock_ms)
        if candidate is not None:
            state.map.put(self._block(candidate, record.n, tenancy))
            return True
        position = state.position if state.position is not None else max(0, record.start or 0)
        start = position if state.map.frontier is None else state.map.frontier
        end = min(start + record.n, position + self.founded.window, OFFSET_MAX)
        if start >= end:
            return False
        state.position = position
        state.map.extend(Interval(start=start, end=end, status=Status.CLAIMED, deliveries=1, tenancy=tenancy))
        return True

    def _candidate(self, state: SlotState, clock_ms: int) -> Interval | None:
        """The first interval that may be granted again; an expired epoch ends for it, whole."""
        for item in state.map:
            if item.status in (Status.FREE, Status.LOST):
                return item
            if item.tenancy is not None and self._has_run_out(item.tenancy, clock_ms):
                state.map.end_epoch(item.tenancy.epoch)
                return next(lost for lost in state.map if lost.start == item.start)
        return None

    def _has_run_out(self, tenancy: Tenancy, clock_ms: int) -> bool:
        return tenancy.producer is None and not self.is_valid(tenancy.renewed_ms, clock_ms)

    def _block(self, candidate: Interval, n: int, tenancy: Tenancy) -> Interval:
        is_to_bury = candidate.charges >= self.founded.delivery_limit
        most = 1 if is_to_bury else n if candidate.status is Status.FREE else min(n, candidate.most)
        return replace(
            candidate,
            end=min(candidate.end, candidate.start + most),
            status=Status.CLAIMED,
            deliveries=candidate.deliveries + 1,
            most=0,
            tenancy=replace(tenancy, is_to_bury=is_to_bury),
        )

    def _held(self, record: RangeAcked | RangeReleased | RangeBuried) -> tuple[SlotState, Interval] | Verdict:
        """The claimed interval that covers the record's offsets, cut to them."""
        if record.start >= record.end:
            return NO_OFFSETS
        state = self.slot(record.slot)
        item = state.map.covering(record.start, record.end, (record.client, record.instance), record.epoch)
        if item is None:
            return NOT_HELD
        return state, replace(item, start=record.start, end=record.end)

    def _on_range_acked(self, record: RangeAcked, offset: int, clock_ms: int) -> Verdict:
        held = self._held(record)
        if isinstance(held, Verdict):
            is_done = record.start < record.end and self.slot(record.slot).map.is_finished(record.start, record.end)
            return UNCHANGED if is_done else held
        state, item = held
        if item.tenancy is not None and item.tenancy.is_to_bury:
            return ignored("it was granted to be buried")
        return self._finish(state, item, Status.DONE)

    def _on_range_buried(self, record: RangeBuried, offset: int, clock_ms: int) -> Verdict:
        held = self._held(record)
        if isinstance(held, Verdict):
            return held
        state, item = held
        if item.tenancy is None or not item.tenancy.is_to_bury:
            return ignored("it was not granted to be buried")
        return self._finish(state, item, Status.DEAD)

    def _finish(self, state: SlotState, item: Interval, status: Status) -> Verdict:
        state.map.put(replace(item, status=status, tenancy=None))
        state.move_to(None)
        return ACCEPTED

    def _on_range_released(self, record: RangeReleased, offset: int, clock_ms: int) -> Verdict:
        held = self._held(record)
        if isinstance(held, Verdict):
            return held
        state, item = held
        taken_back = item.deliveries if record.counts else item.deliveries - 1
        charges = item.charges + 1 if record.counts else item.charges
        state.map.put(replace(item, status=Status.FREE, tenancy=None, deliveries=taken_back, charges=charges))
        return ACCEPTED

    def _on_range_renewed(self, record: RangeRenewed, offset: int, clock_ms: int) -> Verdict:
        state = self.slot(record.slot)
        held = [item for item in state.map if item.is_held_by((record.client, record.instance), record.epoch)]
        for item in held:
            if item.tenancy is not None:
                state.map.put(replace(item, tenancy=replace(item.tenancy, renewed_ms=clock_ms)))
        return ACCEPTED if held else NOT_HELD

    def _on_range_fenced(self, record: RangeFenced, offset: int, clock_ms: int) -> Verdict:
        state = self.slot(record.slot)
        left = state.map.of_epoch(record.epoch)
        if not left:
            return ignored("nothing of that epoch is left")
        tenancy = left[0].tenancy
        if tenancy is None or tenancy.producer is None:
            return ignored("it names no producer")
        if self.is_valid(tenancy.renewed_ms, clock_ms):
            return ignored("it has not expired")
        state.map.end_epoch(record.epoch)
        return ACCEPTED

    def _end_epochs(self, state: SlotState) -> None:
        for epoch in {item.tenancy.epoch for item in state.map if item.tenancy is not None}:
            state.map.end_epoch(epoch)
