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


def ruled(asked: Ranges, covered: Ranges, refusal: str | None) -> Verdict:
    """Accepted is what took effect on all that was asked. Without any refusal, the rest was so already."""
    if covered == asked:
        return Ruling(Kind.ACCEPTED, "", (), covered)
    if covered:
        return Ruling(Kind.PARTIAL, refusal or "the rest was so already", (), covered)
    return UNCHANGED if refusal is None else ignored(refusal)
