"""Knows a queue's whole ledger, what every worker believes, and what was worked on; says what is wrong.

Q1  what is finished was worked on, copied, or had good reasons to be dropped
Q3  two workers never both believe in a message, and none is begun that the log has as somebody else's, or as done
Q5  attempts are charged for failures, and for losses of one that was alone; the limit is the limit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.claims.dead_letters import Letter
from penstock.kafka.reader import Received
from penstock.ledger.log import Entry
from penstock.ledger.machine import Fold, Kind
from penstock.queue.cells import Cell, Status
from penstock.queue.desk import suspects_max
from penstock.queue.hand import Hand
from penstock.queue.ranges import Range
from penstock.queue.records import Acked, Buried, Copied, Dropped, Released, Taken
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.testing.queue_topic import Sent, Task, TopicPartition
from penstock.testing.simulation import Host, Simulation, Violated

if TYPE_CHECKING:
    from penstock.testing.queue_cluster import QueueHost

LEDGER = "orders.g.ledger"
LEASE_MS = 300
ATTEMPTS_MAX = 3
LOSSES_UNTIL_ALONE = next(losses for losses in range(10) if suspects_max(losses) == 1)

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True, kw_only=True)
class QueueJudge:
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
    _copied_by: dict[Place, set[str]] = field(default_factory=dict)
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

    def owned_by(self, name: str) -> frozenset[int]:
        return frozenset(number for number, names in enumerate(self.owners) if name in names)

    # What workers do

    def gave_up(self, question: Taken) -> None:
        """A worker does not wait for the answer any more."""
        self._forgotten.add((question.worker, question.request))

    def given(self, actor: QueueHost, hand: Hand) -> None:
        """A lease comes into a process."""
        self._catch_up()
        self._given.add((hand.partition, hand.epoch))
        if self._requests.get((hand.partition, hand.epoch)) in self._forgotten:
            raise Violated(f"{actor.host.instance} hands out epoch {hand.epoch}, which it had given up")
        in_hand = [(each, record) for each in _active(actor, hand) for record in _messages(each)]
        working = [seat.current for seat in actor.seats if seat.current is not None]
        losses = Counter(_losses(each, record.offset()) for each, record in in_hand)
        simulation = actor.host.simulation
        if hand.losses:
            simulation.reach("one alone" if hand.alone else "suspects in a group")
        if max(losses, default=0) >= LOSSES_UNTIL_ALONE and len(in_hand) > 1:
            raise Violated(f"{actor.host.instance} has one in hand that should be alone, and {len(in_hand)} in all")
        if hand.alone and [each for each in working if (each._hand, each.partition) != (hand, hand.partition)]:
            raise Violated(f"{actor.host.instance} works on something else, and takes one alone")
        for count, found in losses.items():
            if count and found > suspects_max(count):
                raise Violated(f"{actor.host.instance} has {found} in hand that were lost {count} times")

    def begun(self, actor: QueueHost, record: Received, hand: Hand) -> None:
        """A handler gets a message."""
        self._catch_up()
        place, who = (record.partition(), record.offset()), actor.host.instance
        self._begun[place] += 1
        if (*place, hand.epoch) in self._begun_under:
            raise Violated(f"{who} begins {place} twice under epoch {hand.epoch}")
        self._begun_under.add((*place, hand.epoch))
        self._must_be_due(actor, record)
        if self.is_acked_first:
            if self._begun[place] > 1:
                raise Violated(f"{place} is handed out twice")
            if place not in self._acked_by:
                raise Violated(f"{who} begins {place}, which the log does not have as acked")
            return
        cell = self._folds[place[0]].machine.cells.at(place[1])
        if self.is_exclusive and (cell.status is not Status.LEASED or cell.epoch != hand.epoch):
            raise Violated(f"{who} begins {place} under epoch {hand.epoch}, but the log has {cell}")
        if self.is_ordered:
            self._must_be_its_turn(who, record, hand)

    def _must_be_due(self, actor: QueueHost, record: Received) -> None:
        task, simulation = _task(record), actor.host.simulation
        log_ms = max(self._folds[record.partition()].clock_ms, simulation.now_ms + simulation.clock_step_ms)
        if self.is_exclusive and task.due_ms is not None and log_ms < task.due_ms:
            raise Violated(f"{record.offset()} is begun {task.due_ms - log_ms} ms before its time")

    def _must_be_its_turn(self, who: str, record: Received, hand: Hand) -> None:
        number, offset = record.partition(), record.offset()
        cells = self._folds[number].machine.cells
        for earlier in self.topic[number].between(0, offset):
            under = (number, earlier.offset(), hand.epoch)
            if earlier.key() is None or earlier.key() != record.key() or under in self._succeeded | self._given_up:
                continue
            if cells.at(earlier.offset()).status not in (Status.FINISHED, Status.BURIED):
                raise Violated(f"{who} begins {number}/{offset} before {earlier.offset()} of the same key is done")

    def worked(self, record: Received, epoch: int, *, attempt: int, failed: bool) -> None:
        """A handler is done with it."""
        under = (record.partition(), record.offset(), epoch)
        (self._failed if failed else self._succeeded).add(under)
        if failed:
            self._failures[under[:2]] += 1
            if attempt > ATTEMPTS_MAX:
                raise Violated(f"{under[:2]} is tried for the {attempt}th time")
            if attempt == ATTEMPTS_MAX:
                self._given_up.add(under)

    def killed(self, host: Host, record: Received) -> None:
        place = record.partition(), record.offset()
        self.deaths[place] += 1
        host.simulation.note(f"{host.instance} dies of {place}")
        host.simulation.reach("killed by a message")
        if self.deaths[place] > LOSSES_UNTIL_ALONE + ATTEMPTS_MAX:
            raise Violated(f"{place} killed {self.deaths[place]} processes")

    def copied(self, host: Host, letter: Letter) -> None:
        """Into the dead letters."""
        self._catch_up()
        place = letter.record.partition(), letter.record.offset()
        cell = self._folds[place[0]].machine.cells.at(place[1])
        if cell.status is not Status.BURIED and place not in self._letters:
            raise Violated(f"{host.instance} copies {place}, but the log has {cell}")
        if place in self._letters and self._letters[place][1:] != letter[1:]:
            raise Violated(f"two copies of {place} differ: {self._letters[place]}, {letter}")
        if cell.status is Status.BURIED and self._workers.get((place[0], cell.epoch)) != host.instance:
            host.simulation.reach("a burial was copied by somebody else")
        self._letters[place] = letter

    # After every step

    def judge(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._catch_up()
        actors = actors_of(simulation)
        if self.is_exclusive:
            self._one_believer(actors)
        stepped = simulation.stepped
        for actor in actors if stepped is None else [actor for actor in actors if actor.host is stepped]:
            self._same_state(actor)
            if not actor.host.is_asleep:
                self._knows_its_leases(actor)
                self._counts_right(actor)
                if any(desk.rescan_at_ms for desk in actor.worker.desks.values()):
                    simulation.reach("to be scanned again")

    def _catch_up(self) -> None:
        if self._simulation is None:
            return
        for number, there in enumerate(self._simulation.broker.partitions(LEDGER)):
            fold = self._folds[number]
            if fold.next_offset < len(there.stored):
                for entry in there.history(fold.next_offset):
                    self._feed(self._simulation, fold, entry)
                    self._hashes[number] += [fold.hash()] * (entry.offset + 1 - len(self._hashes[number]))

    def _one_believer(self, actors: list[QueueHost]) -> None:
        believed = [
            (number, start, end, actor.host.instance)
            for actor in actors
            for number, desk in actor.worker.desks.items()
            for hand in desk.hands.values()
            if hand.untold and actor.worker.is_good(hand)
            for start, end in hand.untold
        ]
        believed.sort()
        for (number, _, end, who), (other, start, _, another) in zip(believed, believed[1:], strict=False):
            if number == other and start < end:
                raise Violated(f"{who} and {another} both believe in {number}/{start}")

    def _same_state(self, actor: QueueHost) -> None:
        for number in actor.worker.desks:
            fold, hashes = actor.worker.tail.fold(number), self._hashes[number]
            key = actor.host.instance, number
            if not 0 < fold.next_offset <= len(hashes) or self._compared.get(key) == fold.next_offset:
                continue
            self._compared[key] = fold.next_offset
            if fold.hash() != hashes[fold.next_offset - 1]:
                raise Violated(f"{key[0]} has another state at offset {fold.next_offset - 1} than a full replay")

    def _knows_its_leases(self, actor: QueueHost) -> None:
        """What a worker holds by the log as it has read it, is in its hands or on its way back."""
        worker = actor.worker
        for number, desk in worker.desks.items():
            fold = worker.tail.fold(number)
            if fold.halt is not None:
                raise Violated(f"{actor.host.instance} has halted: {fold.halt}")
            ours = {epoch for epoch, lease in fold.machine.leases.items() if lease.worker == worker.name}
            if desk.hands.keys() - fold.machine.leases.keys():
                raise Violated(f"{actor.host.instance} keeps what is over: {set(desk.hands) - ours}")
            under_way = [ticket.record for ticket in desk.tells] + desk.unsent
            returned = {record.epoch for record in under_way if isinstance(record, Released)}
            if ours - desk.hands.keys() - returned:
                raise Violated(f"{actor.host.instance} neither has nor returns {ours - desk.hands.keys()}")

    def _counts_right(self, actor: QueueHost) -> None:
        desks = actor.worker.desks.values()
        held = [each.count for desk in desks for each in (*desk.hands.values(), *desk.asked.values())]
        if self.is_acked_first:
            return
        if actor.worker.in_hand != sum(held):
            raise Violated(f"{actor.host.instance} counts {actor.worker.in_hand} in hand, and has {held}")
        asked = sum(each.count for desk in desks for each in desk.asked.values())
        untold = sum(1 for desk in desks for hand in desk.hands.values() for _ in _messages(hand))
        if asked + untold > self.in_hand_max:
            raise Violated(f"{actor.host.instance} asks for {asked} and has {untold} in hand")

    # The log

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
            task = self.topic[place[0]].sent[place[1]].task
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
            expires_ms = self.topic[number].sent[place[1]].task.expires_ms
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

    # At the end

    def conclude(self, simulation: Simulation) -> None:
        for number, there in enumerate(self.topic):
            machine = self._folds[number].machine
            if machine.position < there.end:
                raise Violated(
                    f"at the end partition {number} is at {machine.position} of {there.end}: {list(machine.cells)}"
                )
            for record in there.between(0, there.end):
                self._ended_well(simulation, (number, record.offset()), record.task)

    def _ended_well(self, simulation: Simulation, place: Place, task: Task) -> None:
        if self.is_acked_first:
            living = {actor.host.instance for actor in actors_of(simulation)}
            if simulation.reached["told LedgerRebuilt"]:
                # What was acked before the cut and not read back may be somebody else's: nobody may hand it out.
                return
            if place in self._acked_by and not self._begun[place] and self._acked_by[place] in living:
                raise Violated(f"{place} is acked, and was not handed out by {self._acked_by[place]}, which lives")
            return
        is_expired = task.expires_ms is not None
        if task.ends_badly and not is_expired and place not in self._letters:
            raise Violated(f"{place} is not among the dead letters")


def actors_of(simulation: Simulation) -> list[QueueHost]:
    return [host.actor for host in simulation.living() if hasattr(host.actor, "pile")]  # type: ignore[misc]


def _active(actor: QueueHost, new: Hand) -> list[Hand]:
    """Leases in this process of which something was not told yet."""
    hands = [hand for desk in actor.worker.desks.values() for hand in desk.hands.values() if hand.untold]
    return hands if new in hands or new.is_over else [*hands, new]


def _messages(hand: Hand) -> Iterator[Received]:
    for stretch in hand.stretches:
        for part in stretch.within(hand.untold):
            yield from part.records


def _losses(hand: Hand, offset: int) -> int:
    cell = hand.cell_of(offset)
    return cell.losses


def _task(record: Received) -> Task:
    assert isinstance(record, Sent)
    return record.task
