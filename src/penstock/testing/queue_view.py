"""A queue's state as plain values, offset by offset: what checkers look at instead of the machine's own answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.queue.ranges import Range
from penstock.queue.state import QueueMachine


class Spot(NamedTuple):
    """One offset."""

    status: str = "ready"
    charges: int = 0
    losses: int = 0
    epoch: int = -1
    due_ms: int = 0
    delay_ms: int = 0
    progress: bytes | None = None
    is_kept: bool = False

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"


class LeaseSeen(NamedTuple):
    worker: str
    renewed_ms: int
    lease_ms: int
    producer: str | None
    alone: bool
    held: tuple[int, ...]

    def is_valid(self, clock_ms: int) -> bool:
        return clock_ms - self.renewed_ms < self.lease_ms


class BurialSeen(NamedTuple):
    time_ms: int
    reason: str
    error: str
    held: tuple[int, ...]


PauseSeen = tuple[str, int | None, str]


class View(NamedTuple):
    position: int
    spots: tuple[Spot, ...]
    """Of offset 0 and up, as far as the trial goes."""
    leases: tuple[tuple[int, LeaseSeen], ...] = ()
    burials: tuple[tuple[int, BurialSeen], ...] = ()
    dead: frozenset[int] = frozenset()
    pauses: tuple[tuple[str, PauseSeen], ...] = ()
    queues: tuple[str, ...] = ()

    def lease(self, epoch: int) -> LeaseSeen | None:
        return dict(self.leases).get(epoch)

    def is_paused(self, clock_ms: int) -> bool:
        pause = dict(self.pauses).get("all")
        return pause is not None and (pause[1] is None or clock_ms < pause[1])


class Transition(NamedTuple):
    """One record, what the machine said to it, and what it did."""

    record: Record
    offset: int
    clock_ms: int
    kind: Kind
    covered: frozenset[int]
    before: View
    after: View


def offsets_of(ranges: Iterable[Range]) -> frozenset[int]:
    return frozenset(offset for start, end in ranges for offset in range(start, end))


def view_of(machine: QueueMachine, upto: int) -> View:
    spots = [
        Spot(run.value.status.value, *run.value[1:])
        for run in machine.cells.runs(0, upto)
        for _ in range(run.start, run.end)
    ]
    return View(
        machine.position,
        tuple(spots),
        tuple(
            (
                epoch,
                LeaseSeen(s.worker, s.renewed_ms, s.lease_ms, s.producer, s.alone, tuple(sorted(offsets_of(s.held)))),
            )
            for epoch, s in sorted(machine.leases.items())
        ),
        tuple(
            (offset, BurialSeen(s.time_ms, s.reason, s.error, tuple(sorted(offsets_of(s.held)))))
            for offset, s in sorted(machine.burials.items())
        ),
        offsets_of((run.start, run.end) for run in machine.dead.runs(0, upto) if run.value),
        tuple((queue, (pause.by, pause.until_ms, pause.reason)) for queue, pause in sorted(machine.pauses.items())),
        machine.queues,
    )


def twin_of(machine: QueueMachine) -> QueueMachine:
    """An equal machine that shares nothing that can change."""
    twin = type(machine)()
    twin.queues, twin.pauses = machine.queues, dict(machine.pauses)
    twin.cells.load(machine.cells)
    twin.dead.load(machine.dead)
    twin.leases = {epoch: replace(lease, held=list(lease.held)) for epoch, lease in machine.leases.items()}
    twin.burials = {offset: replace(burial, held=list(burial.held)) for offset, burial in machine.burials.items()}
    return twin
