"""What a member holds, and whom it tells about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.claims.records import ClaimReleased, Slot
from penstock.ledger.clock import LocalLease


@dataclass(slots=True)
class Tenure:
    """A slot that is ours, as far as we know."""

    slot: Slot
    token: int
    """The epoch of the grant: hand it on to what must not be touched by a former owner."""
    lease: LocalLease
    position: int | None
    """The next offset to read. The holder moves it; heartbeats tell it."""
    told: int | None
    """The position that the log is known to have."""
    since_ms: int = 0
    """When the grant was read back, on our own clock."""
    draining: bool = False
    """To be given back as soon as the work in hand is done: hand out nothing more."""
    drains_until_ms: int | None = None
    """Where it cannot wait for that work: when it is given back all the same."""
    leaving: ClaimReleased | None = None
    is_ready: bool = True
    """Not while former owners are still to be fenced: then it is kept, but nothing of it is read or handed out."""


@dataclass(slots=True)
class Listener:
    """What the holder of slots is told and asked, from the member's own thread."""

    gained: Callable[[Tenure], None] = lambda tenure: None
    is_drained: Callable[[Tenure], bool] = lambda tenure: True
    lost: Callable[[Tenure, str], None] = lambda tenure, reason: None
    released: Callable[[Tenure], None] = lambda tenure: None
