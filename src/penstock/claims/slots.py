"""What is known of slots, as plain state with a few questions to it; records change it by the rules of `state.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.claims.intervals import Intervals, Owner
from penstock.claims.records import ClaimsFounded, Slot
from penstock.ledger.machine import Verdict, ignored

NO_OFFSETS = ignored("there is no offset in it")

OFFSET_MAX = 2**63 - 1
"""Kafka's own bound. Whatever somebody writes, the state must fit into a snapshot."""


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


class Slots:
    """The state of one coordination partition."""

    def __init__(self, *, log_start: int = 0) -> None:
        self.founded = ClaimsFounded(partitions=0, heartbeat_ms=0, window=0, delivery_limit=0)
        self.slots: dict[Slot, SlotState] = {}
        self.pauses: dict[str, Pause] = {}
        self.log_start = log_start
        """Above 0 only where the log was cut and no snapshot exists: then older epochs may be adopted."""

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

    def _paused_for(self, group: str, client: str, clock_ms: int) -> Verdict | None:
        pause = self.pause_of(group, clock_ms)
        return ignored(f"the group is paused by {pause.by}") if pause is not None and pause.by != client else None

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
