"""Replay of the coordination ledger: who owns which slot, under which epoch, and how far it is.

An owner is valid while less than 2 HB of log time have passed since it was last renewed. Expiry writes no record:
an expired owner stays until somebody else is granted the slot, and may renew itself until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.claims.intervals import Interval, Intervals, Owner, Status, Tenancy
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
from penstock.ledger.codec import Record
from penstock.ledger.machine import ACCEPTED, UNCHANGED, Verdict, ignored, together

NOT_OWNER = ignored("the sender is not the owner under this epoch")
NOT_HELD = ignored("the sender holds no such range under this epoch")
NO_OFFSETS = ignored("there is no offset in it")

OFFSET_MAX = 2**63 - 1
"""Kafka's own bound. Whatever somebody writes, the state must fit into a snapshot."""


def _is_offset(value: int | None) -> bool:
    return value is None or 0 <= value <= OFFSET_MAX


@dataclass(slots=True)
class SlotState:
    owner: Owner | None = None
    epoch: int = -1
    renewed_ms: int = 0
    position: int | None = None
    """The next offset to read; none is not 0."""
    producers: set[str] = field(default_factory=set)
    """Transactional ids that are not known to be fenced."""
    intent: int | None = None
    map: Intervals = field(default_factory=Intervals)

    def move_to(self, position: int | None) -> None:
        """Never backwards; then on over what is finished already."""
        if position is not None and (self.position is None or position > self.position):
            self.position = position
        self.position = self.map.settle(self.position)
        if self.intent is not None and self.position is not None and self.position >= self.intent:
            self.intent = None


@dataclass(frozen=True, slots=True)
class Pause:
    by: str
    until_ms: int


class Claims:
    """The machine of one coordination partition."""

    record_types: ClassVar[tuple[type[Record], ...]] = RECORD_TYPES
    speaks: ClassVar[int] = 1

    def __init__(self, *, log_start: int = 0) -> None:
        self.founded = ClaimsFounded(partitions=0, heartbeat_ms=0, window=0, delivery_limit=0)
        self.slots: dict[Slot, SlotState] = {}
        self.pauses: dict[str, Pause] = {}
        self.log_start = log_start
        """Above 0 only where the log was cut and no snapshot exists: then older epochs may be adopted."""
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

    # Looking

    @property
    def lease_ms(self) -> int:
        return 2 * self.founded.heartbeat_ms

    def slot(self, slot: Slot) -> SlotState:
        """What is known of a slot; an unknown one is as new, and not remembered for having been asked about."""
        return self.slots.get(slot) or SlotState()

    def is_valid(self, renewed_ms: int, clock_ms: int) -> bool:
        return clock_ms - renewed_ms < self.lease_ms

    def valid_owner(self, state: SlotState, clock_ms: int) -> Owner | None:
        return state.owner if self.is_valid(state.renewed_ms, clock_ms) else None

    def pause_of(self, group: str, clock_ms: int) -> Pause | None:
        pause = self.pauses.get(group)
        return pause if pause is not None and clock_ms < pause.until_ms else None

    def has_live_ranges(self, state: SlotState, clock_ms: int) -> bool:
        return any(item.tenancy and self.is_valid(item.tenancy.renewed_ms, clock_ms) for item in state.map)

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

    def _paused_for(self, group: str, client: str, clock_ms: int) -> Verdict | None:
        pause = self.pause_of(group, clock_ms)
        return ignored(f"the group is paused by {pause.by}") if pause is not None and pause.by != client else None

    def _on_heartbeat(self, record: Heartbeat, offset: int, clock_ms: int) -> Verdict:
        sender = (record.client, record.instance)
        return together(self._on_beat(sender, beat, clock_ms) for beat in record.beats)

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

    # Ranges

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

    # The ledger's own

    def reset_clock(self, clock_ms: int) -> None:
        for state in self.slots.values():
            state.renewed_ms = clock_ms
            state.map.items = [
                replace(item, tenancy=item.tenancy and replace(item.tenancy, renewed_ms=clock_ms)) for item in state.map
            ]

    def dump(self) -> Any:
        return [
            [self.founded.partitions, self.founded.heartbeat_ms, self.founded.window, self.founded.delivery_limit],
            self.log_start,
            [[slot, _dumped(self.slots[slot])] for slot in sorted(self.slots, key=_order)],
            [[group, pause.by, pause.until_ms] for group, pause in sorted(self.pauses.items())],
        ]

    def load(self, dumped: Any) -> None:
        founded, self.log_start, slots, pauses = dumped
        self.founded = ClaimsFounded(*founded)
        self.slots = {Slot(*slot): _loaded(state) for slot, state in slots}
        self.pauses = {group: Pause(by, until_ms) for group, by, until_ms in pauses}


def _order(slot: Slot) -> tuple[str, str, int]:
    return slot.group, slot.topic, -1 if slot.partition is None else slot.partition


def _dumped(state: SlotState) -> list[Any]:
    return [
        state.owner,
        state.epoch,
        state.renewed_ms,
        state.position,
        sorted(state.producers),
        state.intent,
        state.map.dump(),
    ]


def _loaded(dumped: Iterable[Any]) -> SlotState:
    owner, epoch, renewed_ms, position, producers, intent, intervals = dumped
    state = SlotState(owner and (owner[0], owner[1]), epoch, renewed_ms, position, set(producers), intent)
    state.map.load(intervals)
    return state
