"""Replay of the coordination ledger: who owns which slot, under which epoch, and how far it is.

An owner is valid while less than 2 HB of log time have passed since it was last renewed. Expiry writes no record:
an expired owner stays until somebody else is granted the slot, and may renew itself until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from penstock.claims.intervals import Owner
from penstock.claims.ranges import RangeRules
from penstock.claims.records import (
    RECORD_TYPES,
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    Intended,
    ProducersFenced,
    RangeAcked,
    RangeBuried,
    RangeClaimed,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
    Slot,
)
from penstock.claims.slots import NO_OFFSETS, OFFSET_MAX, Pause, SlotState
from penstock.ledger.codec import Record
from penstock.ledger.machine import ACCEPTED, UNCHANGED, Verdict, ignored, together

__all__ = ["Claims", "Pause", "SlotState"]

NOT_OWNER = ignored("the sender is not the owner under this epoch")


def _is_offset(value: int | None) -> bool:
    return value is None or 0 <= value <= OFFSET_MAX


class Claims(RangeRules):
    """The machine of one coordination partition."""

    record_types: ClassVar[tuple[type[Record], ...]] = RECORD_TYPES
    speaks: ClassVar[int] = 1

    def __init__(self, *, log_start: int = 0) -> None:
        super().__init__(log_start=log_start)
        self._rules: dict[type[Record], Callable[[Any, int, int], Verdict]] = {
            ClaimsFounded: self._on_founded,
            Claimed: self._on_claimed,
            Heartbeat: self._on_heartbeat,
            ClaimReleased: self._on_released,
            Intended: self._on_intended,
            ProducersFenced: self._on_producers_fenced,
            GroupPaused: self._on_paused,
            RangeClaimed: self._on_range_claimed,
            RangeAcked: self._on_range_acked,
            RangeReleased: self._on_range_released,
            RangeBuried: self._on_range_buried,
            RangeRenewed: self._on_range_renewed,
            RangeFenced: self._on_range_fenced,
        }

    def apply(self, record: Any, offset: int, clock_ms: int) -> Verdict:
        return self._rules[type(record)](record, offset, clock_ms)

    # Whole slots

    def _on_founded(self, record: ClaimsFounded, offset: int, clock_ms: int) -> Verdict:
        if min(record.partitions, record.heartbeat_ms, record.window, record.delivery_limit) < 1:
            return ignored("every value must be 1 or more")
        self.founded = record
        return ACCEPTED

    def _on_claimed(self, record: Claimed, offset: int, clock_ms: int) -> Verdict:
        state, sender = self.slot(record.slot), (record.client, record.instance)
        valid = self.valid_owner(state, clock_ms)
        refusal = self._refusal(record, state, valid, clock_ms)
        if refusal is not None:
            return refusal
        if valid == sender:
            return UNCHANGED
        for item in state.map:
            if item.tenancy is not None and item.tenancy.producer is not None:
                state.producers.add(item.tenancy.producer)
        self._end_epochs(state)
        state.owner, state.epoch, state.renewed_ms, state.intent = sender, offset, clock_ms, None
        if record.producer is not None:
            state.producers.add(record.producer)
        self.slots[record.slot] = state
        return ACCEPTED

    def _refusal(self, record: Claimed, state: SlotState, valid: Owner | None, clock_ms: int) -> Verdict | None:
        paused = self._paused_for(record.slot.group, record.client, clock_ms)
        if paused is not None:
            return paused
        if record.expects is not None and record.expects != state.epoch:
            return ignored(f"the epoch is {state.epoch}, not {record.expects}")
        is_own_older = valid is not None and valid[0] == record.client and record.reclaim
        if valid is not None and valid != (record.client, record.instance) and not is_own_older:
            return ignored(f"owned by {valid[0]}/{valid[1]}")
        if self.has_live_ranges(state, clock_ms):
            return ignored("ranges of it are claimed")
        return None

    def _on_heartbeat(self, record: Heartbeat, offset: int, clock_ms: int) -> Verdict:
        sender = (record.client, record.instance)
        return together([self._on_beat(sender, beat, clock_ms) for beat in record.beats])

    def _on_beat(self, sender: Owner, beat: Beat, clock_ms: int) -> Verdict:
        if not _is_offset(beat.position):
            return NO_OFFSETS
        state = self._owned(beat.slot, sender, beat.epoch) or self._adopted(beat.slot, sender, beat.epoch)
        if state is None:
            return NOT_OWNER
        state.renewed_ms = clock_ms
        state.producers.difference_update(beat.fenced)
        if beat.producer is not None:
            state.producers.add(beat.producer)
        state.move_to(beat.position)
        return ACCEPTED

    def _owned(self, slot: Slot, sender: Owner, epoch: int) -> SlotState | None:
        state = self.slots.get(slot)
        return state if state is not None and state.owner == sender and state.epoch == epoch else None

    def _adopted(self, slot: Slot, sender: Owner, epoch: int) -> SlotState | None:
        """The grant was cut away before any snapshot was written: who still renews it has it."""
        if not self.slot(slot).epoch < epoch < self.log_start:
            return None
        state = self.slots.setdefault(slot, SlotState())
        state.owner, state.epoch, state.intent = sender, epoch, None
        return state

    def _on_released(self, record: ClaimReleased, offset: int, clock_ms: int) -> Verdict:
        state = self._owned(record.slot, (record.client, record.instance), record.epoch)
        if state is None:
            return NOT_OWNER
        if not _is_offset(record.position):
            return NO_OFFSETS
        state.owner, state.intent = None, None
        state.producers.difference_update(record.fenced)
        if record.reset:
            state.position = record.position
            state.map.clear(record.position)
        else:
            state.move_to(record.position)
        return ACCEPTED

    def _on_intended(self, record: Intended, offset: int, clock_ms: int) -> Verdict:
        state = self._owned(record.slot, (record.client, record.instance), record.epoch)
        if state is None:
            return NOT_OWNER
        if not self.is_valid(state.renewed_ms, clock_ms):
            return ignored("the claim has expired")
        if state.position is not None and record.upto <= state.position:
            return ignored(f"the position is at {state.position} already")
        state.intent = record.upto
        return ACCEPTED

    def _on_producers_fenced(self, record: ProducersFenced, offset: int, clock_ms: int) -> Verdict:
        state = self.slot(record.slot)
        valid = self.valid_owner(state, clock_ms)
        if valid is not None:
            return ignored(f"owned by {valid[0]}/{valid[1]}")
        if record.epoch not in (None, state.epoch):
            # Since the sender looked, somebody was granted the slot, perhaps under one of these very ids.
            return ignored(f"the epoch is {state.epoch}, not {record.epoch}")
        if state.producers.isdisjoint(record.ids):
            return UNCHANGED
        state.producers.difference_update(record.ids)
        return ACCEPTED

    def _on_paused(self, record: GroupPaused, offset: int, clock_ms: int) -> Verdict:
        if record.until_ms > clock_ms:
            self.pauses[record.group] = Pause(record.by, record.until_ms)
        else:
            self.pauses.pop(record.group, None)
        return ACCEPTED
