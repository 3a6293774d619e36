"""What a member should ask for and give back: values in, choices out.

There is no rebalance. A member takes what is free until it has its share, waits for what has expired, and gives one
slot at a time back while it has more than its share and somebody has less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from penstock.claims.intervals import Owner
from penstock.claims.state import Claims, SlotState


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
