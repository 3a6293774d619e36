"""What the machine says to a record about offsets: not only whether, but for which of them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ledger.machine import UNCHANGED, Kind, Verdict, ignored
from penstock.queue.ranges import Ranges


@dataclass(frozen=True, slots=True)
class Ruling(Verdict):
    """A verdict on a record about offsets."""

    covered: Ranges = ()
    """Those for which it took effect."""
    has_ended_leases: bool = False
    """Whether leases ended by it, with whatever else was in them."""


WITHOUT_EFFECT = Ruling(Kind.IGNORED)


def ruled(asked: Ranges, covered: Ranges, refusal: str | None, *, has_ended_leases: bool = False) -> Verdict:
    """Accepted is what took effect on all that was asked. Without any refusal, the rest was so already."""
    if covered == asked:
        return Ruling(Kind.ACCEPTED, "", (), covered, has_ended_leases)
    if covered:
        return Ruling(Kind.PARTIAL, refusal or "the rest was so already", (), covered, has_ended_leases)
    return UNCHANGED if refusal is None else ignored(refusal)
