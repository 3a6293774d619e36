"""What a queue's ledger knows of one offset. Everything at once, so that an offset is always in exactly one state."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Status(Enum):
    READY = "ready"
    """May be granted, now."""
    WAITING = "waiting"
    """May be granted from a certain log time on."""
    LEASED = "leased"
    """In the set of a lease that is not over, whether that is valid or has expired."""
    BURIED = "buried"
    """No more hand-outs; the copy in the dead letters is still to be made."""
    FINISHED = "finished"


# An enum looks its members up in Python code, each time; these are asked for with every message.
IS_READY, IS_WAITING, IS_LEASED, IS_BURIED, IS_FINISHED = Status


class Cell(NamedTuple):
    status: Status
    charges: int = 0
    """Attempts that counted; the one to come is this plus one."""
    losses: int = 0
    """Leases that ended without a word while it was in them."""
    epoch: int = -1
    """Of a leased one: its lease. Of a buried one: the offset of the record that buried it."""
    due_ms: int = 0
    delay_ms: int = 0
    """Of a waiting one: until when, and how long that was when it was said."""
    progress: bytes | None = None
    """What the last attempt left for the next one."""
    is_kept: bool = False
    """Whether a copy is in safety from the topic's retention."""

    @property
    def attempt(self) -> int:
        return self.charges + 1

    def leased(self, epoch: int) -> Cell:
        return Cell(IS_LEASED, self.charges, self.losses, epoch, 0, 0, self.progress, self.is_kept)

    def lost(self, *, alone: bool) -> Cell:
        """Free again after a lease that ended without a word; who was alone in it is charged for that."""
        return Cell(IS_READY, self.charges + alone, self.losses + 1, -1, 0, 0, self.progress, self.is_kept)

    def released(self, *, counts: bool, due_ms: int, delay_ms: int) -> Cell:
        charges = self.charges + counts
        if not delay_ms:
            return Cell(IS_READY, charges, self.losses, -1, 0, 0, self.progress, self.is_kept)
        return Cell(IS_WAITING, charges, self.losses, -1, due_ms, delay_ms, self.progress, self.is_kept)

    def buried(self, by: int) -> Cell:
        return Cell(IS_BURIED, self.charges + 1, self.losses, by, 0, 0, None, self.is_kept)


READY = Cell(IS_READY)
"""As every offset begins."""
FINISHED = Cell(IS_FINISHED)
"""Nothing else is remembered of a finished one, so that neighbours become one run."""
