"""Bugs in a queue's worker, for the simulation to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.claims.dead_letters import Letter
from penstock.kafka.reader import Received
from penstock.ledger.machine import Fold
from penstock.ledger.tail import ReadBack
from penstock.queue.cells import Cell
from penstock.queue.desk import Asked, Desk
from penstock.queue.hand import ACKED, Hand, Outcome
from penstock.queue.ranges import Range, Ranges, common, joined
from penstock.queue.reading import Reading
from penstock.queue.records import Buried, Taken
from penstock.queue.retry import USED_UP
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.queue.stretch import Stretch
from penstock.queue.taking import Taking
from penstock.queue.telling import Telling
from penstock.queue.worker import Worker
from penstock.testing.queue_cluster import Parts
from penstock.testing.queue_reading_bugs import READING_BUGS

# Leases


class _ActsOnAppend(Taking):
    """Bug: what was asked for is handed out without waiting for the answer."""

    def _ask(self, desk: Desk, stretches: list[Stretch], **given: Any) -> None:
        super()._ask(desk, stretches, **given)
        for asked in desk.asked.values():
            ranges = joined(part for stretch in asked.stretches for part in stretch.ranges)
            self._hand_out(
                self._taken_up(desk, asked, -self._requests, ranges, self._tail.fold(desk.partition).machine)
            )


class _NoLocalLease(Worker):
    """Bug: a worker believes in a lease until the log says otherwise."""

    def is_good(self, hand: Hand) -> bool:
        return hand.is_over or not hand.is_lost


class _LeaseFromReadBack(Taking):
    """Bug: the local lease counts from when the answer was read."""

    def _taken_up(self, desk: Desk, asked: Asked, epoch: int, granted: Ranges, machine: QueueMachine) -> Hand:
        hand = super()._taken_up(desk, asked, epoch, granted, machine)
        hand.lease.renewed(sent_ms=self._now_ms())
        return hand


class _NeverRenews(Telling):
    """Bug: a message must be done within one lease."""

    def renew(self, desk: Desk) -> None:
        pass


class _RenewsWhatIsOurs(Telling):
    """Bug: with the claim on a partition the leases in it are given up, too."""

    def renew(self, desk: Desk) -> None:
        if desk.is_ours:
            super().renew(desk)


class _BelievesUnansweredRenewals(Telling):
    """Bug: a lease counts as renewed when the renewal was sent."""

    def renew(self, desk: Desk) -> None:
        before = desk.renewal
        super().renew(desk)
        if desk.renewal is not None and desk.renewal is not before:
            for hand in desk.hands.values():
                hand.lease.renewed(sent_ms=desk.renewal.sent_ms)


class _KeepsWhatIsOver(Worker):
    """Bug: a lease that the log does not know any more is kept and renewed."""

    def _look_after(self, desk: Desk) -> None:
        hidden, desk.hands = desk.hands, {}
        super()._look_after(desk)
        desk.hands = hidden
        self._telling.renew(desk)


# Grants that nobody waits for


class _KeepsStrays(Taking):
    """Bug: what was granted to a question that nobody waits for any more is kept."""

    def on_answer(self, desk: Desk, record: Taken, read_back: ReadBack, **given: Any) -> None:
        if record.request in desk.asked and read_back.ticket is not None:
            super().on_answer(desk, record, read_back, **given)


class _HandsOutStrays(Taking):
    """Bug: what was granted to a question that was given up is handed out all the same."""

    def drop_overdue(self, desk: Desk) -> None:
        before = dict(desk.asked)
        super().drop_overdue(desk)
        self._given_up = {**getattr(self, "_given_up", {}), **{n: a for n, a in before.items() if n not in desk.asked}}

    def on_answer(self, desk: Desk, record: Taken, read_back: ReadBack, **given: Any) -> None:
        asked = getattr(self, "_given_up", {}).pop(record.request, None)
        covered = read_back.verdict.covered if isinstance(read_back.verdict, Ruling) else ()
        machine = self._tail.fold(desk.partition).machine
        if asked is not None and covered and read_back.offset in machine.leases:
            self._grant(desk, asked, read_back.offset, covered, machine)
        else:
            super().on_answer(desk, record, read_back, **given)


class _ForgetsWhatASnapshotGaveIt(Telling):
    """Bug: grants that came to a worker in a snapshot are kept by nobody."""

    def give_strays_back(self, desk: Desk) -> None:
        pass


# What became of messages


class _AcksWhatItIsGiven(Taking):
    """Bug: at least once, acked before it was worked on."""

    def _grant(self, desk: Desk, asked: Asked, epoch: int, granted: Ranges, machine: QueueMachine) -> None:
        super()._grant(desk, asked, epoch, granted, machine)
        self._telling.tell(desk.hands[epoch], granted, ACKED)


class _AcksUnderANewEpoch(Telling):
    """Bug: what was done under a lease that is over is acked under the next one."""

    def flush(self) -> None:
        for number, (hand, ranges, outcome) in enumerate(self._told):
            if hand.is_lost:
                others = self._desks[hand.partition].hands.values() if hand.partition in self._desks else ()
                for other in others:
                    if common(ranges, other.untold):
                        self._told[number] = (other, ranges, outcome)
        super().flush()


class _CountsWhatItGivesBack(Telling):
    """Bug: what was not handed out, or not to its end, is charged."""

    def _tell(self, hand: Hand, parts: list[Range], outcome: Outcome) -> None:
        super()._tell(hand, parts, outcome._replace(counts=True) if outcome.kind == "released" else outcome)


class _SaysThingsOnce(Telling):
    """Bug: a record that does not come back is not appended again."""

    def repeat(self, desk: Desk) -> None:
        desk.unsent.clear()
        for ticket in [ticket for ticket in desk.tells if self.is_overdue(ticket)]:
            del desk.tells[ticket]


class _HearsNothingOfSnapshots(Worker):
    """Bug: after the state came from a snapshot, a worker goes on as if it had seen everything."""

    def _begin_anew(self, desk: Desk, fold: Fold[QueueMachine]) -> None:
        desk.fold = fold


class _TakesRefusedForDone(Telling):
    """Bug: whatever the log says to it, what was told is done."""

    def on_told(self, desk: Desk, record: Any, read_back: ReadBack) -> Hand | None:
        hand = desk.hands.get(record.epoch)
        found = super().on_told(desk, record, read_back)
        if found is None and hand is not None:
            hand.left.clear()
            desk.hands.pop(record.epoch, None)
        return found or hand


# Dead letters


class _CopiesBeforeTheVerdict(Reading):
    """Bug: the copy is made when the burial was sent."""

    @property
    def _seen(self) -> dict[tuple[int, int], Received]:
        # It becomes this class after it was made.
        seen: dict[tuple[int, int], Received] = vars(self).setdefault("seen", {})
        return seen

    def _sort_in(self, desk: Desk, stretches: Iterable[Stretch], receive: Callable[[Iterable[Stretch]], None]) -> None:
        for stretch in stretches:
            self._seen.update({(desk.partition, record.offset()): record for record in stretch.records})
        super()._sort_in(desk, stretches, receive)

    def copy(self, desk: Desk, lease_ms: int) -> None:
        for record in [ticket.record for ticket in desk.tells]:
            if isinstance(record, Buried) and record.epoch in desk.hands:
                offsets = [offset for start, end in record.ranges for offset in range(start, end)]
                found = [self._seen[place] for offset in offsets if (place := (desk.partition, offset)) in self._seen]
                letters = [Letter(each, record.reason, record.error, 3, "") for each in found]
                self._clerk.copy(desk.partition, record.ranges, letters)
        super().copy(desk, lease_ms)


class _CopiesItsOwnOnly(Desk):
    """Bug: a burial whose worker died is left alone."""

    __slots__ = ()

    def to_copy(self, machine: QueueMachine, now_ms: int, lease_ms: int) -> Ranges:
        found = super().to_copy(machine, now_ms, lease_ms)
        ours = [part for number in self.own_burials for part in machine.burials[number].held]
        return tuple(common(found, joined(sorted(ours)))) if ours else ()


class _BuriesNothing(Taking):
    """Bug: what was lost too often is handed out once more."""

    def _bury_the_spent(self, hand: Hand) -> None:
        pass


class _BuriesTooSoon(Telling):
    """Bug: one attempt fewer than allowed."""

    def _tell(self, hand: Hand, parts: list[Range], outcome: Outcome) -> None:
        if outcome.counts and hand.cell_of(parts[0][0]).attempt == 2:
            outcome = Outcome("buried", reason=USED_UP)
        super()._tell(hand, parts, outcome)


# Suspects


class _CrowdsLoners(Desk):
    """Bug: one that should be alone is taken beside others."""

    __slots__ = ()

    @property
    def has_loner(self) -> bool:
        return False


class _BlamesGroups(Taking):
    """Bug: whoever is in a group of suspects is charged if it is lost."""

    def _ask(self, desk: Desk, stretches: list[Stretch], *, losses: int, alone: bool) -> None:
        super()._ask(desk, stretches, losses=losses, alone=alone or losses > 0)


class _SuspectsNobody(Desk):
    """Bug: what comes from lost leases goes to all the others."""

    __slots__ = ()

    def put_in_line(self, machine: QueueMachine, cell: Cell, stretches: Iterable[Stretch], log_ms: int) -> None:
        self.receive(stretches)


BUGS: dict[str, Parts] = {
    "": Parts(),
    "acts_on_append": Parts(taking=_ActsOnAppend),
    "no_local_lease": Parts(worker=_NoLocalLease),
    "lease_from_read_back": Parts(taking=_LeaseFromReadBack),
    "never_renews": Parts(telling=_NeverRenews),
    "renews_what_is_ours": Parts(telling=_RenewsWhatIsOurs),
    "believes_unanswered_renewals": Parts(telling=_BelievesUnansweredRenewals),
    "keeps_what_is_over": Parts(worker=_KeepsWhatIsOver),
    "keeps_strays": Parts(taking=_KeepsStrays),
    "hands_out_strays": Parts(taking=_HandsOutStrays),
    "forgets_what_a_snapshot_gave_it": Parts(telling=_ForgetsWhatASnapshotGaveIt),
    "acks_what_it_is_given": Parts(taking=_AcksWhatItIsGiven),
    "acks_under_a_new_epoch": Parts(telling=_AcksUnderANewEpoch),
    "counts_what_it_gives_back": Parts(telling=_CountsWhatItGivesBack),
    "says_things_once": Parts(telling=_SaysThingsOnce),
    "hears_nothing_of_snapshots": Parts(worker=_HearsNothingOfSnapshots),
    "takes_refused_for_done": Parts(telling=_TakesRefusedForDone),
    "copies_before_the_verdict": Parts(reading=_CopiesBeforeTheVerdict),
    "copies_its_own_only": Parts(desk=_CopiesItsOwnOnly),
    "buries_nothing": Parts(taking=_BuriesNothing),
    "buries_too_soon": Parts(telling=_BuriesTooSoon),
    "crowds_loners": Parts(desk=_CrowdsLoners),
    "blames_groups": Parts(taking=_BlamesGroups),
    "suspects_nobody": Parts(desk=_SuspectsNobody),
    **READING_BUGS,
}
