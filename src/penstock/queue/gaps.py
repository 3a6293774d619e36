"""Offsets below a partition's head that have to be read again, and when. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from penstock.queue.cells import IS_BURIED, IS_FINISHED, IS_READY, IS_WAITING, Cell
from penstock.queue.ranges import Range, Ranges, joined, outside, packed, width
from penstock.queue.spans import Run
from penstock.queue.state import QueueMachine

Gap = tuple[int, Ranges]
"""Offsets that became free together, and from when on they are."""


class Gaps:
    """A gap may be in here twice, or be finished by now: whoever takes it out looks at the ledger again."""

    def __init__(self) -> None:
        self._heap: list[Gap] = []
        self._put_off: list[Gap] = []
        self._count = 0
        self.put_off_count = 0
        """Offsets that wait for a time of which the ledger knows nothing: that of their message."""

    def __len__(self) -> int:
        return self._count

    def scan(self, machine: QueueMachine, head: int, *, without: Ranges) -> int:
        """Begin anew with all that is free below the head, now or for later. Returns the head: not below the first
        offset that nobody ever touched.
        """
        runs = list(machine.cells)
        found = [Run(start, end, cell) for (start, cell), (end, _) in pairwise(runs)]
        untouched, cell = runs[-1]
        if untouched < head:
            # What was given back uncounted looks as if nobody had touched it.
            found.append(Run(untouched, head, cell))
        self._heap = [gap for run in found for gap in _gap(run, without)]
        heapq.heapify(self._heap)
        self._count = len(self._heap)
        self._put_off, self.put_off_count = [], 0
        return max(head, untouched)

    def note(self, machine: QueueMachine, ranges: Ranges) -> None:
        """These offsets may have become free, now or for later."""
        for cell, parts in machine.cells.by_value(ranges):
            due_ms = _due_ms(cell)
            if due_ms is not None:
                self._push(due_ms, parts)

    def note_released(self, machine: QueueMachine, ranges: Ranges) -> None:
        """The same of offsets that were released together, and so for the same time."""
        due_ms = _due_ms(machine.cells.at(ranges[0][0])) if ranges else None
        if due_ms is not None:
            self._push(due_ms, ranges)

    def add(self, ranges: Sequence[Range]) -> None:
        """In whatever order."""
        if gap := packed(tuple(ranges)):
            self._push(0, gap)

    def _push(self, due_ms: int, ranges: Ranges) -> None:
        heapq.heappush(self._heap, (due_ms, ranges))
        self._count += len(ranges)

    def put_off(self, ranges: Sequence[Range], due_ms: int) -> None:
        """Not before that time, whatever the ledger says."""
        heapq.heappush(self._put_off, (due_ms, tuple(ranges)))
        self._count += len(ranges)
        self.put_off_count += width(ranges)

    def are_due(self, log_ms: int) -> bool:
        """Whether any of those is left that only the ledger has a say in."""
        return bool(self._heap) and self._heap[0][0] <= log_ms

    def due(self, machine: QueueMachine, log_ms: int, count_max: int) -> list[tuple[Cell, Ranges]]:
        """Offsets to be read again now, at most so many, by what the ledger knows of them."""
        while self._put_off and self._put_off[0][0] <= log_ms:
            gap = heapq.heappop(self._put_off)
            self.put_off_count -= width(gap[1])
            heapq.heappush(self._heap, gap)
        found: list[tuple[Cell, Ranges]] = []
        room = count_max
        while self.are_due(log_ms) and room > 0:
            _, ranges = heapq.heappop(self._heap)
            self._count -= len(ranges)
            for cell, parts in machine.cells.by_value(ranges):
                if cell.status is IS_WAITING and cell.due_ms > log_ms:
                    self._push(cell.due_ms, parts)
                elif machine.may_be_granted(cell, log_ms):
                    size = width(parts)
                    now, later = (parts, ()) if size <= room else _divided(parts, room)
                    if now:
                        found.append((cell, now))
                    room = max(0, room - size)
                    if later:
                        self._push(0, later)
        return found


def unfinished(machine: QueueMachine, head: int) -> list[Range]:
    """All below `head` that a later message with the same key has to wait for."""
    found = (
        [
            (run.start, run.end)
            for run in machine.cells.runs(0, head)
            if run.value.status not in (IS_FINISHED, IS_BURIED)
        ]
        if head
        else []
    )
    return list(joined(found))


def _gap(run: Run[Cell], without: Ranges) -> list[Gap]:
    due_ms = _due_ms(run.value)
    if due_ms is None:
        return []
    whole = (run.start, run.end)
    return [(due_ms, (part,)) for part in (outside(whole, without) if without else [whole])]


def _divided(ranges: Ranges, count: int) -> tuple[Ranges, Ranges]:
    """The first `count` offsets, and the rest."""
    first: list[Range] = []
    for index, (start, end) in enumerate(ranges):
        if end - start > count:
            now = ((start, start + count),) if count else ()
            return (*first, *now), ((start + count, end), *ranges[index + 1 :])
        first.append((start, end))
        count -= end - start
    return ranges, ()


def _due_ms(cell: Cell) -> int | None:
    """From when on it is free; none if it is not."""
    if cell.status is IS_WAITING:
        return cell.due_ms
    return 0 if cell.status is IS_READY else None
