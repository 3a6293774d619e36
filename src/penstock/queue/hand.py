"""What a worker has in hand: messages under one lease, from the grant until the log knows what became of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, NamedTuple

from penstock.ledger.clock import LocalLease
from penstock.queue.cells import Cell
from penstock.queue.ranges import Range, Ranges
from penstock.queue.stretch import Stretch

_start_of = itemgetter(0)


class Outcome(NamedTuple):
    """What became of a message in hand."""

    kind: Literal["acked", "released", "buried"]
    delay_ms: int = 0
    counts: bool = False
    reason: str = ""
    error: str = ""


ACKED = Outcome("acked")
GIVEN_BACK = Outcome("released")
"""It was never handed out, or not to its end through no fault of its own: it costs no attempt."""


@dataclass(slots=True, eq=False)
class Hand:
    """One lease of ours."""

    partition: int
    epoch: int
    """The fencing token of every message in it."""
    stretches: Sequence[Stretch]
    lease: LocalLease
    cells: Sequence[tuple[Cell, Ranges]]
    """What the log knew of these offsets before."""
    losses: int = 0
    """In how many lost leases those were among them that were lost most often: these are suspects."""
    alone: bool = False
    left: list[Range] = field(default_factory=list)
    """Offsets of which the log does not know yet what became of them."""
    untold: list[Range] = field(default_factory=list)
    """Those of which the log was not told either: it is told once, and one thing only."""
    is_lost: bool = False
    """Somebody else has, or may soon have, what is left of it."""
    is_over: bool = False
    """At most once: the log has it as finished, and only we know that it is worked on."""
    count: int = 0
    size_bytes: int = 0
    done: int = 0
    """How many of its messages handlers are done with."""
    _cell_from: list[tuple[int, Cell]] | None = None

    def attempts(self, stretch: Stretch) -> list[int]:
        """The number of this attempt, for each of these messages of it."""
        if len(self.cells) == 1:
            return [self.cells[0][0].attempt] * len(stretch.records)
        return [self.cell_of(record.offset()).attempt for record in stretch.records]

    def cell_of(self, offset: int) -> Cell:
        """Of an offset that is in it."""
        if len(self.cells) == 1:
            return self.cells[0][0]
        if self._cell_from is None:
            self._cell_from = sorted((start, cell) for cell, ranges in self.cells for start, _ in ranges)
        return self._cell_from[bisect_right(self._cell_from, offset, key=_start_of) - 1][1]
