"""Bugs in how a queue's worker reads messages, keeps their order and makes batches, for the simulation to find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.ledger.log import Entry
from penstock.ledger.machine import Judged
from penstock.queue.batch_pile import BatchPile
from penstock.queue.clerk import Reread
from penstock.queue.desk import Asked, Desk
from penstock.queue.hand import Hand
from penstock.queue.intake import Intake, Sorted
from penstock.queue.message import Batch, Bury, Retry
from penstock.queue.order import KeyOrder
from penstock.queue.pile import MessagePile, Seat
from penstock.queue.ranges import Range, Ranges
from penstock.queue.reading import Reading
from penstock.queue.records import Released
from penstock.queue.state import QueueMachine
from penstock.queue.stretch import Stretch
from penstock.queue.taking import Taking
from penstock.queue.worker import Worker
from penstock.testing.queue_cluster import Parts

# Reading


class ForgetsReleased(Worker):
    """Bug: what was given back is not read again."""

    def _saw(self, entry: Entry, judged: Judged) -> None:
        if not isinstance(judged.record, Released):
            super()._saw(entry, judged)


class WaitsForNobody(Desk):
    """Bug: leases that ran out are not looked for."""

    __slots__ = ()

    def note_expired(self, machine: QueueMachine, now_ms: int) -> None:
        pass


class PassesInvisibleSilently(Reading):
    """Bug: the log is not told of offsets without a message."""

    def _pass_invisible(self) -> None:
        for number, desk in self._assigned.items():
            desk.head = max(desk.head, self._source.position(number))


class TakesUnreadForInvisible(Reading):
    """Bug: what could not be read again just now passes for invisible."""

    def _pass_over(self, desk: Desk, answer: Reread, seen: list[Range]) -> None:
        super()._pass_over(desk, answer._replace(reached=answer.ranges[-1][1]), seen)


class ForgetsTheDelayed(Intake):
    """Bug: what is not due yet is put off for ever."""

    def sorted(self, stretch: Stretch, log_ms: int) -> Sorted:
        return super().sorted(stretch, log_ms)._replace(put_off=[])


class IgnoresDelays(Intake):
    """Bug: a delay is no reason to wait."""

    def sorted(self, stretch: Stretch, log_ms: int) -> Sorted:
        return Sorted([stretch], [], {})


class DropsWhatIsNotDue(Intake):
    """Bug: what is not due passes for expired."""

    def sorted(self, stretch: Stretch, log_ms: int) -> Sorted:
        found = super().sorted(stretch, log_ms)
        late = [part for part, _ in found.put_off]
        return found._replace(put_off=[], dropped={"expired": late} if late else found.dropped)


# Order, and at most once


class _ChoosesAll(KeyOrder):
    def choose(self, stretches: Iterable[Stretch]) -> list[Stretch]:
        return list(stretches)


class _KeepsTheRest(KeyOrder):
    def out_of_turn(self, stretches: Iterable[Stretch]) -> list[Range]:
        return []


class _ForgetsForGood(KeyOrder):
    def freed(self) -> tuple[list[Stretch], list[Range]]:
        return super().freed()[0], []


class HasNoOrder(Desk):
    """Bug: messages with the same key do not wait for each other."""

    __slots__ = ()

    def open(self, machine: QueueMachine, order: KeyOrder | None) -> None:
        if order is not None:
            order.__class__ = _ChoosesAll
        super().open(machine, order)


class KeepsPartsOfChains(Desk):
    """Bug: of a chain that was granted in part, the rest is worked on."""

    __slots__ = ()

    def open(self, machine: QueueMachine, order: KeyOrder | None) -> None:
        if order is not None:
            order.__class__ = _KeepsTheRest
        super().open(machine, order)


class ForgetsForGood(Desk):
    """Bug: what waits behind a busy key, and was not kept in memory, is not read again."""

    __slots__ = ()

    def open(self, machine: QueueMachine, order: KeyOrder | None) -> None:
        if order is not None:
            order.__class__ = _ForgetsForGood
        super().open(machine, order)


class LearnsNothing(Desk):
    """Bug: what is unfinished when a partition is opened holds nobody up."""

    __slots__ = ()

    def open(self, machine: QueueMachine, order: KeyOrder | None) -> None:
        super().open(machine, order)
        self.to_learn.clear()
        self.is_learning = False


class GoesOnAfterAFailure(MessagePile):
    """Bug: whoever comes behind one that failed does not wait for it."""

    def _drop_chain(self, seat: Seat[Any], hand: Hand) -> None:
        if seat.chain is not None:
            self._follow(seat, hand)


# Batches


class ChargesTheBatch(BatchPile):
    """Bug: all messages of a batch that failed are charged for it."""

    def _halve(self, batch: Batch, failure: BaseException) -> None:
        for message in batch:
            self.settle(message, self.outcome_of_failure(message, failure), failure)


class AcksTheBatch(BatchPile):
    """Bug: of a batch that answers for each, those that failed are acked too."""

    def _settled(self, piece: Batch, answers: dict[int, Retry | Bury]) -> bool:
        return super()._settled(piece, {})


class NeverHalves(BatchPile):
    """Bug: a batch that failed comes again as a whole, for ever."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._halving.failed = lambda *_: None  # type: ignore[method-assign]


class HandsOutBeforeTheAck(Taking):
    """Bug: at most once, handed out before the ack was read back."""

    def _grant(self, desk: Desk, asked: Asked, epoch: int, granted: Ranges, machine: QueueMachine) -> None:
        super()._grant(desk, asked, epoch, granted, machine)
        if self._terms.is_acked_first:
            self._hand_out(desk.hands[epoch])


READING_BUGS: dict[str, Parts] = {
    "forgets_released": Parts(worker=ForgetsReleased),
    "waits_for_nobody": Parts(desk=WaitsForNobody),
    "passes_invisible_silently": Parts(reading=PassesInvisibleSilently),
    "takes_unread_for_invisible": Parts(reading=TakesUnreadForInvisible),
    "forgets_the_delayed": Parts(intake=ForgetsTheDelayed),
    "ignores_delays": Parts(intake=IgnoresDelays),
    "drops_what_is_not_due": Parts(intake=DropsWhatIsNotDue),
    "forgets_for_good": Parts(desk=ForgetsForGood),
    "charges_the_batch": Parts(batch_pile=ChargesTheBatch),
    "acks_the_batch": Parts(batch_pile=AcksTheBatch),
    "never_halves": Parts(batch_pile=NeverHalves),
    "has_no_order": Parts(desk=HasNoOrder),
    "keeps_parts_of_chains": Parts(desk=KeepsPartsOfChains),
    "learns_nothing": Parts(desk=LearnsNothing),
    "goes_on_after_a_failure": Parts(pile=GoesOnAfterAFailure),
    "hands_out_before_the_ack": Parts(taking=HandsOutBeforeTheAck),
}
