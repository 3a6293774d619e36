"""The state of a queue's machine as plain values, for snapshots: equal states give equal dumps.

Most cells look alike: each kind is written once, and a run is its length and the number of its kind. Which offsets a
lease or a burial still has is not written at all: the cells tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Any

from penstock.queue.cells import FINISHED, READY, Cell, Status
from penstock.queue.leases import Burial, Lease
from penstock.queue.ranges import Range, joined
from penstock.queue.spans import Spans


def dumped_cells(cells: Spans[Cell]) -> Any:
    starts = [start for start, _ in cells]
    kinds: dict[Cell, int] = {}
    numbers = [kinds.setdefault(cell, len(kinds)) for _, cell in cells]
    return [[b - a for a, b in pairwise(starts)], numbers, [[cell.status.value, *cell[1:]] for cell in kinds]]


def loaded_cells(dumped: Any) -> Spans[Cell]:
    lengths, numbers, kinds = dumped
    known = [_shared(Cell(Status(status), *rest)) for status, *rest in kinds]
    cells = Spans(READY)
    cells.load(zip(accumulate(lengths, initial=0), [known[number] for number in numbers], strict=True))
    return cells


def _shared(cell: Cell) -> Cell:
    """The machine knows a finished cell by its identity."""
    return FINISHED if cell == FINISHED else cell


def dumped_leases(leases: Iterable[Lease]) -> Any:
    in_order = sorted(leases, key=lambda lease: lease.epoch)
    return [
        [lease.epoch, lease.worker, lease.renewed_ms, lease.lease_ms, lease.producer, lease.alone] for lease in in_order
    ]


def loaded_leases(dumped: Any, cells: Spans[Cell]) -> dict[int, Lease]:
    held = dict(_held(cells, Status.LEASED))
    return {
        epoch: Lease(epoch, worker, renewed_ms, lease_ms, producer, alone, held[epoch])
        for epoch, worker, renewed_ms, lease_ms, producer, alone in dumped
    }


def dumped_burials(burials: Iterable[Burial]) -> Any:
    in_order = sorted(burials, key=lambda burial: burial.offset)
    return [[burial.offset, burial.time_ms, burial.reason, burial.error] for burial in in_order]


def loaded_burials(dumped: Any, cells: Spans[Cell]) -> dict[int, Burial]:
    held = dict(_held(cells, Status.BURIED))
    return {offset: Burial(offset, time_ms, reason, error, held[offset]) for offset, time_ms, reason, error in dumped}


def dumped_flags(flags: Spans[bool]) -> Any:
    """Where the value changes; it begins with False."""
    return [start for start, value in flags if start or value]


def loaded_flags(changes: list[int]) -> Spans[bool]:
    flags = Spans(False)
    first = [] if changes[:1] == [0] else [(0, False)]
    flags.load([*first, *((start, number % 2 == 0) for number, start in enumerate(changes))])
    return flags


def _held(cells: Spans[Cell], status: Status) -> Iterator[tuple[int, list[Range]]]:
    found: dict[int, list[Range]] = {}
    for (start, cell), (end, _) in pairwise(cells):
        if cell.status is status:
            found.setdefault(cell.epoch, []).append((start, end))
    for epoch, ranges in found.items():
        yield epoch, list(joined(ranges))
