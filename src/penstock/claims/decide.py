"""What a member should ask for and give back: values in, choices out.

There is no rebalance. A member takes what is free until it has its share, waits for what has expired, and gives one
slot at a time back while it has more than its share and somebody has less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import xxhash

from penstock.claims.intervals import Owner
from penstock.claims.records import Slot
from penstock.claims.slots import SlotState
from penstock.claims.state import Claims


class Standing(Enum):
    """How a slot stands at a log time."""

    FREE = "free"
    FRESH = "fresh"
    SILENT = "silent"
    EXPIRED = "expired"

    @property
    def is_alive(self) -> bool:
        return self in (Standing.FRESH, Standing.SILENT)


def standing(machine: Claims, state: SlotState, log_ms: int) -> Standing:
    if state.owner is None:
        return Standing.FREE
    age_ms = log_ms - state.renewed_ms
    if age_ms < machine.founded.heartbeat_ms:
        return Standing.FRESH
    return Standing.SILENT if age_ms < machine.lease_ms else Standing.EXPIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Appetite:
    """How a member chooses among the slots that it wants."""

    prefers: Callable[[Slot], bool] = lambda slot: False
    """Asked for first, given back last."""
    whole_topics: bool = False
    """Who has partition 0 of a topic has the topic: it alone asks for the others, and shares are counted in topics."""
    give_up_lag: int = 0
    """How far behind a slot must be before it may be given up for being too slow; 0 is never."""

    def is_unit(self, slot: Slot) -> bool:
        """Whether shares are counted in slots like this one."""
        return not self.whole_topics or not slot.partition

    def first_come(self, slots: Iterable[Slot], client: str) -> list[Slot]:
        """In which order to ask: members that begin together must not all ask for the same."""
        return sorted(slots, key=lambda slot: self._turn(slot, client))

    def _turn(self, slot: Slot, client: str) -> tuple[bool, int, int]:
        unit = lead_of(slot) if self.whole_topics else slot
        return not self.prefers(unit), _rank(client, unit), slot.partition or 0

    def first_gone(self, slots: Iterable[Slot], since_ms: Mapping[Slot, int]) -> Slot:
        """Which to give back. What was taken last is what nobody else took."""
        return min(slots, key=lambda slot: (self.prefers(slot), since_ms[slot], str(slot)))


def _rank(client: str, slot: Slot) -> int:
    return xxhash.xxh3_64_intdigest(f"{client} {slot}".encode())


def lead_of(slot: Slot) -> Slot:
    """The slot whose owner has the whole topic."""
    return slot._replace(partition=0)


class Share(NamedTuple):
    """How many slots a member should have at least, and at most."""

    least: int
    most: int


def share(slot_count: int, member_count: int) -> Share:
    members = max(1, member_count)
    return Share(slot_count // members, -(-slot_count // members))


def counted(owners: Iterable[Owner | None]) -> dict[Owner, int]:
    """Everybody who owns something, and how much."""
    counts: dict[Owner, int] = {}
    for owner in owners:
        if owner is not None:
            counts[owner] = counts.get(owner, 0) + 1
    return counts


def richest(counts: Mapping[Owner, int], *, but: Owner) -> Owner | None:
    """Whom to ask when everything is taken: who has most, the first by name among equals."""
    others = sorted((-count, owner) for owner, count in counts.items() if owner != but)
    return others[0][1] if others else None
