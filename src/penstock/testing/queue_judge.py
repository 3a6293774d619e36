"""Knows a queue's whole ledger, what every worker believes, and what was worked on; says what is wrong.

Q1  what is finished was worked on, copied, or had good reasons to be dropped
Q3  two workers never both believe in a message, and none is begun that the log has as somebody else's, or as done
Q5  attempts are charged for failures, and for losses of one that was alone; the limit is the limit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.claims.dead_letters import Letter
from penstock.kafka.reader import Received
from penstock.queue.cells import Status
from penstock.queue.desk import suspects_max
from penstock.queue.hand import Hand
from penstock.queue.message import Batch
from penstock.queue.records import Released, Taken
from penstock.queue.stretch import parts_within
from penstock.testing.queue_ledger_judge import ATTEMPTS_MAX, LOSSES_UNTIL_ALONE, LedgerJudge, Place
from penstock.testing.queue_topic import Task
from penstock.testing.simulation import Host, Simulation, Violated

if TYPE_CHECKING:
    from penstock.testing.queue_cluster import QueueHost


@dataclass(slots=True, kw_only=True)
class QueueJudge(LedgerJudge):
    """Knows the workers, too."""

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
        pieces = [seat.current for seat in actor.seats if seat.current is not None]
        working = [message for piece in pieces for message in (piece if isinstance(piece, Batch) else [piece])]
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
        task, simulation = self.task_of(record.partition(), record.offset()), actor.host.simulation
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
        for (number, _, end, who), (other, start, _, another) in pairwise(believed):
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
        if self.is_acked_first:
            return
        desks = actor.worker.desks.values()
        asked = sum(each.count for desk in desks for each in desk.asked.values())
        held = sum(hand.count for desk in desks for hand in desk.hands.values())
        if actor.worker.in_hand != asked + held:
            raise Violated(f"{actor.host.instance} counts {actor.worker.in_hand} in hand, not {asked} + {held}")
        untold = sum(1 for desk in desks for hand in desk.hands.values() for _ in _messages(hand))
        if asked + untold > self.in_hand_max:
            raise Violated(f"{actor.host.instance} asks for {asked} and has {untold} in hand")

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
    for part in parts_within(hand.stretches, hand.untold):
        yield from part.records


def _losses(hand: Hand, offset: int) -> int:
    cell = hand.cell_of(offset)
    return cell.losses
