"""Knows a queue's whole ledger, and what was worked on; says what the log must not have.

Q1  what is finished was worked on, copied, or had good reasons to be dropped
Q5  attempts are charged for failures, and for losses of one that was alone; the limit is the limit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.claims.dead_letters import Letter
from penstock.ledger.log import Entry
from penstock.ledger.machine import Fold, Kind
from penstock.queue.cells import Cell, Status
from penstock.queue.desk import suspects_max
from penstock.queue.ranges import Range
from penstock.queue.records import Acked, Buried, Copied, Dropped, Released, Taken
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.testing.queue_topic import Sent, Task, TopicPartition
from penstock.testing.simulation import Simulation, Violated

LEDGER = "orders.g.ledger"
LEASE_MS = 300
ATTEMPTS_MAX = 3
LOSSES_UNTIL_ALONE = next(losses for losses in range(10) if suspects_max(losses) == 1)

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True, kw_only=True)
class LedgerJudge:
    """`is_exclusive`: not where the log's clock may step ahead, for then a lease may end early."""

    topic: list[TopicPartition]
    is_exclusive: bool = True
    is_acked_first: bool = False
    is_ordered: bool = False
    in_hand_max: int
    stops_at_ms: dict[str, int] = field(default_factory=dict)
    """When a host is told to stop, once."""
    owners: list[frozenset[str]] = field(default_factory=list)
    """Of each partition; several at once do no harm."""
    deaths: Counter[Place] = field(default_factory=Counter)
    _begun: Counter[Place] = field(default_factory=Counter)
    _begun_under: set[tuple[int, int, int]] = field(default_factory=set)
    _given: set[Place] = field(default_factory=set)
    """Epochs that were handed out."""
    _succeeded: set[tuple[int, int, int]] = field(default_factory=set)
    _failed: set[tuple[int, int, int]] = field(default_factory=set)
    """Who was worked on under which epoch, and how that ended."""
    _given_up: set[tuple[int, int, int]] = field(default_factory=set)
    _failures: Counter[Place] = field(default_factory=Counter)
    _letters: dict[Place, Letter] = field(default_factory=dict)
    _accounted: set[Place] = field(default_factory=set)
    _acked_by: dict[Place, str] = field(default_factory=dict)
    _folds: list[Fold[QueueMachine]] = field(default_factory=list)
    _hashes: list[list[str]] = field(default_factory=list)
    _positions: list[int] = field(default_factory=list)
    _compared: dict[tuple[str, int], int] = field(default_factory=dict)
    _workers: dict[Place, str] = field(default_factory=dict)
    """Who was granted an epoch."""
    _requests: dict[Place, tuple[str, int]] = field(default_factory=dict)
    _forgotten: set[tuple[str, int]] = field(default_factory=set)
    """Questions: by the epoch that they won, and those that nobody waits for any more."""
    _simulation: Simulation | None = None

    def __post_init__(self) -> None:
        self._folds = [Fold(QueueMachine()) for _ in self.topic]
        self._hashes = [[] for _ in self.topic]
        self._positions = [0 for _ in self.topic]

    def task_of(self, partition: int, offset: int) -> Task:
        """A copy of a message does not know it."""
        return self.topic[partition].sent[offset].task

    def owned_by(self, name: str) -> frozenset[int]:
        return frozenset(number for number, names in enumerate(self.owners) if name in names)

    # The log

    def _catch_up(self) -> None:
        if self._simulation is None:
            return
        for number, there in enumerate(self._simulation.broker.partitions(LEDGER)):
            fold = self._folds[number]
            if fold.next_offset < len(there.stored):
                for entry in there.history(fold.next_offset):
                    self._feed(self._simulation, fold, entry)
                    self._hashes[number] += [fold.hash()] * (entry.offset + 1 - len(self._hashes[number]))

    def _feed(self, simulation: Simulation, fold: Fold[QueueMachine], entry: Entry) -> None:
        number, machine = entry.partition, fold.machine
        valid = {epoch: lease.is_valid(entry.time_ms) for epoch, lease in machine.leases.items()}
        leases = {epoch: lease.worker for epoch, lease in machine.leases.items()}
        judged = fold.feed(entry.offset, entry.time_ms, entry.value)
        covered = judged.verdict.covered if isinstance(judged.verdict, Ruling) else ()
        places = [(number, record.offset()) for record in self._visible(number, covered)]
        match judged.record:
            case Taken(worker=worker, request=request):
                if covered:
                    self._workers[number, entry.offset] = worker
                    self._requests[number, entry.offset] = worker, request
                if judged.verdict.kind is Kind.PARTIAL:
                    simulation.reach("granted in part")
                if leases.keys() - machine.leases.keys():
                    simulation.reach("granted after a loss")
            case Acked(epoch=epoch) if covered:
                self._on_acked(simulation, places, epoch)
                if not valid[epoch]:
                    simulation.reach("acked after expiry")
                if leases[epoch].rpartition("-")[0] not in self.owners[number]:
                    simulation.reach("acked by a former owner")
            case Released(epoch=epoch) as released if covered:
                self._on_released(simulation, number, places, released)
            case Buried(epoch=epoch) if covered:
                self._workers[number, entry.offset] = leases[epoch]
                self._on_buried(simulation, places, epoch, machine)
            case Copied():
                self._on_copied(places)
            case Dropped() as dropped:
                self._on_dropped(simulation, number, places, dropped, fold.clock_ms)
        self._lawful(simulation, number, machine)

    def _on_acked(self, simulation: Simulation, places: list[Place], epoch: int) -> None:
        for place in places:
            self._acked_by[place] = self._workers[place[0], epoch]
            if not self.is_acked_first and (*place, epoch) not in self._succeeded:
                raise Violated(f"{place} is acked under epoch {epoch}, and was not worked on under it")
        self._accounted.update(places)

    def _on_released(self, simulation: Simulation, number: int, places: list[Place], record: Released) -> None:
        if (number, record.epoch) not in self._given:
            simulation.reach("given back without being handed out")
        for place in places:
            if record.counts and (*place, record.epoch) not in self._failed:
                raise Violated(f"{place} is charged under epoch {record.epoch}, and did not fail")

    def _on_buried(self, simulation: Simulation, places: list[Place], epoch: int, machine: QueueMachine) -> None:
        for place in places:
            cell = machine.cells.at(place[1])
            if (*place, epoch) in self._failed:
                simulation.reach("buried after a failure")
                limit = ATTEMPTS_MAX
            else:
                simulation.reach("buried after losses")
                limit = ATTEMPTS_MAX + 1
            if cell.charges != limit:
                raise Violated(f"{place} is buried with {cell.charges} charges")
            task = self.task_of(*place)
            if not task.ends_badly and cell.losses < LOSSES_UNTIL_ALONE + ATTEMPTS_MAX - self._failures[place]:
                raise Violated(f"{place} is buried, and was harmless: {cell}")

    def _on_copied(self, places: list[Place]) -> None:
        for place in places:
            if place not in self._letters:
                raise Violated(f"{place} passes for copied, and there is no letter")
        self._accounted.update(places)

    def _on_dropped(
        self, simulation: Simulation, number: int, places: list[Place], record: Dropped, clock_ms: int
    ) -> None:
        simulation.reach(f"dropped: {record.reason}")
        for place in places:
            expires_ms = self.task_of(*place).expires_ms
            is_expired = record.reason == "expired" and expires_ms is not None and expires_ms <= clock_ms + LEASE_MS
            if not is_expired and (self.is_exclusive or expires_ms is None):
                raise Violated(f"{place} is dropped as {record.reason}, and is there")
        self._accounted.update(places)

    def _lawful(self, simulation: Simulation, number: int, machine: QueueMachine) -> None:
        position = machine.position
        if position < self._positions[number]:
            raise Violated(f"the position of {number} went back to {position}")
        for record in self._visible(number, ((self._positions[number], position),)):
            if (number, record.offset()) not in self._accounted:
                raise Violated(f"the position of {number} is {position}, and {record.offset()} is not finished")
        self._positions[number] = position
        for (start, cell), (end, _) in pairwise(machine.cells):
            if cell.charges or cell.losses:
                for record in self.topic[number].between(start, end):
                    self._charged_for_a_reason(simulation, (number, record.offset()), cell)

    def _charged_for_a_reason(self, simulation: Simulation, place: Place, cell: Cell) -> None:
        spent = 1 if cell.status is Status.BURIED and cell.charges > ATTEMPTS_MAX else 0
        if cell.charges - spent > self._failures[place] + max(0, cell.losses - LOSSES_UNTIL_ALONE):
            raise Violated(f"{place} has {cell.charges} charges and {cell.losses} losses")
        if cell.losses and not simulation.is_disturbed and not self.deaths:
            raise Violated(f"{place} was lost, and nothing had happened")

    def _visible(self, number: int, ranges: tuple[Range, ...]) -> Iterator[Sent]:
        for start, end in ranges:
            yield from self.topic[number].between(start, end)
