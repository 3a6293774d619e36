"""What a worker has in hand: messages under one lease, from the grant until the log knows what became of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter, methodcaller
from typing import Literal, NamedTuple

from penstock.ledger.clock import LocalLease
from penstock.queue.cells import Cell
from penstock.queue.ranges import Range, width
from penstock.queue.stretch import Stretch, count_within

_start_of, _offset_of = itemgetter(0), methodcaller("offset")


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
    """Its messages, for as long as anybody needs them."""
    lease: LocalLease
    cells: Sequence[tuple[Cell, Sequence[Range]]]
    """What the log knew of these offsets before, in their order."""
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
    is_dense: bool = False
    """Whether it has as many messages as offsets: then nobody needs to look which message an offset belongs to."""
    done: int = 0
    """How many of its messages handlers are done with."""
    _changes: list[tuple[int, Cell]] | None = None

    def count_in(self, ranges: Sequence[Range]) -> int:
        """How many of its messages have their offset in these, which are all in it."""
        return width(ranges) if self.is_dense else count_within(self.stretches, ranges)

    def attempts(self, stretch: Stretch) -> list[int]:
        """The number of this attempt, for each of these messages of it."""
        records, changes = stretch.records, self._cell_changes()
        found: list[int] = []
        while (low := len(found)) < len(records):
            at = bisect_right(changes, records[low].offset(), key=_start_of)
            high = len(records)
            if at < len(changes) and changes[at][0] <= records[-1].offset():
                high = bisect_left(records, changes[at][0], low, key=_offset_of)
            found += [changes[at - 1][1].attempt] * (high - low)
        return found

    def attempts_at(self, offsets: Sequence[int]) -> list[int]:
        """The same for some of its offsets."""
        changes = self._cell_changes()
        if offsets:
            first = bisect_right(changes, offsets[0], key=_start_of)
            if first == len(changes) or offsets[-1] < changes[first][0]:
                return [changes[first - 1][1].attempt] * len(offsets)
        return [self.cell_of(offset).attempt for offset in offsets]

    def cell_of(self, offset: int) -> Cell:
        """Of an offset that is in it."""
        changes = self._cell_changes()
        return changes[bisect_right(changes, offset, key=_start_of) - 1][1]

    def _cell_changes(self) -> list[tuple[int, Cell]]:
        """From which of its offsets on it is which cell. What failed is mostly far from what is new: these are few."""
        if self._changes is None:
            self._changes = [(ranges[0][0], cell) for cell, ranges in self.cells]
        return self._changes
