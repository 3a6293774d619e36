"""Offsets below a partition's head that have to be read again, and when. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise

from penstock.queue.cells import IS_BURIED, IS_FINISHED, IS_READY, IS_WAITING, Cell
from penstock.queue.ranges import Range, Ranges, common, joined
from penstock.queue.spans import Run
from penstock.queue.state import QueueMachine


class Gaps:
    """A gap may be in here twice, or be finished by now: whoever takes it out looks at the ledger again."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._put_off: list[tuple[int, int, int]] = []
        self.put_off_count = 0
        """Offsets that wait for a time of which the ledger knows nothing: that of their message."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._put_off)

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
        self._put_off, self.put_off_count = [], 0
        return max(head, untouched)

    def note(self, machine: QueueMachine, ranges: Iterable[Range]) -> None:
        """These offsets may have become free, now or for later."""
        for start, end in ranges:
            for run in machine.cells.runs(start, end):
                due_ms = _due_ms(run.value)
                if due_ms is not None:
                    heapq.heappush(self._heap, (due_ms, run.start, run.end))

    def add(self, ranges: Iterable[Range]) -> None:
        for part in ranges:
            heapq.heappush(self._heap, (0, *part))

    def put_off(self, ranges: Iterable[Range], due_ms: int) -> None:
        """Not before that time, whatever the ledger says."""
        for start, end in ranges:
            heapq.heappush(self._put_off, (due_ms, start, end))
            self.put_off_count += end - start

    def due(self, machine: QueueMachine, log_ms: int, count_max: int) -> Ranges:
        """Offsets to be read again now, at most so many."""
        while self._put_off and self._put_off[0][0] <= log_ms:
            gap = heapq.heappop(self._put_off)
            self.put_off_count -= gap[2] - gap[1]
            heapq.heappush(self._heap, gap)
        found: list[Range] = []
        count = 0
        while self._heap and self._heap[0][0] <= log_ms and count < count_max:
            _, start, end = heapq.heappop(self._heap)
            for run in machine.cells.runs(start, end):
                upto = min(run.end, run.start + count_max - count)
                if run.value.status is IS_WAITING and run.value.due_ms > log_ms:
                    heapq.heappush(self._heap, (run.value.due_ms, run.start, run.end))
                elif upto <= run.start:
                    heapq.heappush(self._heap, (0, run.start, run.end))
                elif machine.may_be_granted(run.value, log_ms):
                    found.append((run.start, upto))
                    count += upto - run.start
                    if upto < run.end:
                        heapq.heappush(self._heap, (0, upto, run.end))
        return joined(sorted(found))


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


def _gap(run: Run[Cell], without: Ranges) -> list[tuple[int, int, int]]:
    due_ms = _due_ms(run.value)
    if due_ms is None:
        return []
    whole = (run.start, run.end)
    return [(due_ms, *part) for part in (outside(whole, without) if without else [whole])]


def _due_ms(cell: Cell) -> int | None:
    """From when on it is free; none if it is not."""
    if cell.status is IS_WAITING:
        return cell.due_ms
    return 0 if cell.status is IS_READY else None


def outside(whole: Range, ranges: Sequence[Range]) -> list[Range]:
    """What is left of it without these."""
    left: list[Range] = []
    reached, end = whole
    for low, high in common((whole,), ranges):
        if low > reached:
            left.append((reached, low))
        reached = high
    if reached < end:
        left.append((reached, end))
    return left
