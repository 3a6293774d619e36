"""A worker: leases messages through the queue's ledger, hands them out, and tells the log what became of them.

    read ── Taken ──▶ read back: granted ──▶ in hand ── Acked · Released · Buried ──▶ read back
      ▲                 │ refused               │ Renewed every third of a lease
      └── read again ◀──┘                       └── somebody else was granted it ──▶ lost
          when it is due

It acts only on what it has read back, and safety is in the ledger: who holds the claim on a partition asks, so that
nobody else does, but two who ask at once are never both granted an offset. After the claim went to somebody else, what
is in hand is renewed and finished all the same. One thread drives it by `step`; the simulator does the same.

`reading.py` how messages come to its desks · `taking.py` how they come into its hands · `telling.py` what the log hears
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.crash import crash_point
from penstock.errors import GenesisMismatch
from penstock.ledger.codec import Record
from penstock.ledger.log import Entry
from penstock.ledger.machine import ClockReset, Fold, Judged
from penstock.ledger.tail import NEVER_READ_BACK, ReadBack, Tail, Ticket
from penstock.queue.clerk import Clerk
from penstock.queue.desk import Desk
from penstock.queue.hand import GIVEN_BACK, Hand, Outcome
from penstock.queue.intake import Intake
from penstock.queue.order import KeyOrder, Shelf
from penstock.queue.ranges import Range, Ranges, common
from penstock.queue.reading import Reading, Source
from penstock.queue.records import Acked, Buried, Dropped, LeaseFenced, QueueFounded, Released, Renewed, Taken
from penstock.queue.rulings import WITHOUT_EFFECT, Ruling
from penstock.queue.solitude import Solitude
from penstock.queue.state import QueueMachine
from penstock.queue.taking import Taking
from penstock.queue.telling import Telling
from penstock.queue.terms import Terms

__all__ = ["Terms", "Worker"]

RESCAN_MS = 1_000


class Worker:
    """Takes what is free in its partitions, up to what it may have in hand."""

    def __init__(
        self,
        tail: Tail[QueueMachine],
        source: Source,
        clerk: Clerk,
        *,
        terms: Terms,
        founded: Callable[[int], QueueFounded],
        hand_out: Callable[[Hand], object],
        monotonic_ms: Callable[[], int],
        intake: Intake | None = None,
        solitude: Solitude | None = None,
        queue: str = "",
    ) -> None:
        """`founded` gives the genesis of a partition that has none yet; `hand_out` gets each granted lease.

        The workers of one process share one `solitude`. `queue` is how events name it.
        """
        self.tail, self.name = tail, tail.instance
        self.desks: dict[int, Desk] = {}
        self.is_draining = False
        """Ask for nothing more."""
        self.still_steps = 0
        """How many steps found nothing, since the last that did."""
        self._terms, self._founded, self._now_ms = terms, founded, monotonic_ms
        self._telling = Telling(
            tail,
            self.desks,
            queue=queue,
            lease_ms=terms.lease_ms,
            monotonic_ms=monotonic_ms,
            worked_off=lambda hand, ranges: self._taking.worked_off(hand, ranges),
            done_with=self._done_with,
        )
        self._taking = Taking(
            tail,
            self.desks,
            self._telling,
            queue=queue,
            terms=terms,
            hand_out=hand_out,
            monotonic_ms=monotonic_ms,
            solitude=solitude or Solitude(),
        )
        self._reading = Reading(
            tail,
            source,
            clerk,
            intake or Intake(),
            append=self._telling.append,
            room_max=terms.in_hand_max,
            room_max_bytes=terms.in_hand_bytes_max,
            gaps_max=terms.gaps_max,
            monotonic_ms=monotonic_ms,
        )
        self.positions: dict[int, int] = {}
        """Of our partitions, and at the end of those that were ours: all below is finished."""
        self._opening: dict[int, Ticket] = {}
        self._shelf = Shelf(terms.in_hand_max, terms.in_hand_bytes_max)
        self._turn = 0
        self.tell = self._telling.tell
        """`tell(hand, ranges, outcome)`, from any thread: what became of these offsets. The log is told with the next
        step, again and again until it knows; of one offset it is told one thing only, the first.
        """
        self.note_progress = self._telling.note_progress
        """`note_progress(hand, offset, data)`, from any thread: what the next attempt is to begin with."""
        tail.witness = self._saw

    def own(self, partitions: Iterable[int]) -> None:
        """We hold the claims on exactly these partitions now."""
        wanted = set(partitions)
        for number, desk in self.desks.items():
            if number not in wanted and desk.is_ours:
                self._disown(desk)
                self._opening.pop(number, None)
                if not self.is_draining:
                    self.positions.pop(number, None)
        if new := [number for number in sorted(wanted) if number not in self.desks]:
            self.tail.follow(new)
        # A dictionary of its own is shared with the parts of this worker: it is changed, never replaced.
        self.desks.update({number: Desk(number) for number in new})
        for number in wanted:
            self.desks[number].is_ours = True

    def _disown(self, desk: Desk) -> None:
        desk.disown()
        self._reading.forget(desk.partition)

    def is_good(self, hand: Hand) -> bool:
        """Whether work on it may be begun or go on: nobody else can have it. Any thread may ask."""
        return hand.is_over or (not hand.is_lost and hand.lease.is_good(self._now_ms()))

    @property
    def in_hand(self) -> int:
        """Messages that were asked for or granted, and of which the log does not know yet what became of them."""
        return self._taking.in_hand

    @property
    def is_idle(self) -> bool:
        return self._telling.is_idle and all(desk.is_idle for desk in self.desks.values())

    @property
    def is_open(self) -> bool:
        """Whether messages can be taken from all partitions that are ours, and there are some."""
        ours = [desk.is_open for desk in self.desks.values() if desk.is_ours]
        return bool(ours) and all(ours)

    @property
    def halted(self) -> frozenset[int]:
        """Partitions whose ledger is at a record that this version must not pass: others may go on there."""
        return frozenset(number for number, desk in self.desks.items() if desk.is_halted)

    def counted(self) -> dict[int, tuple[QueueMachine, int, int]]:
        """Of each open partition the ledger, its time, and how many messages wait for a time of their own."""
        now_ms = self._now_ms()
        return {
            number: (self.tail.fold(number).machine, desk.log_ms(now_ms), desk.gaps.put_off_count)
            for number, desk in self.desks.items()
            if desk.is_open
        }

    def release_all(self) -> None:
        """Give back, at no cost to them, all messages in hand of which the log was told nothing yet."""
        for desk in self.desks.values():
            for hand in desk.hands.values():
                self.tell(hand, tuple(hand.untold), GIVEN_BACK)

    def close(self) -> None:
        self._taking.close()

    # Driving

    def step(self, timeout_ms: int) -> None:
        """Read what is new in ledger and topic, then ask, renew and tell what is due."""
        reads = not self.is_draining and self._reading.has_room
        waits_for_topic = reads and not any(desk.asked or desk.tells for desk in self.desks.values())
        # No waiting for the ledger while the topic gives: what was asked for is read back with one of the next steps.
        is_busy = reads and self._reading.is_flowing
        answers = self.tail.step(0 if waits_for_topic or is_busy else timeout_ms)
        for read_back in answers:
            self._on_read_back(read_back)
        self.still_steps = 0 if answers or is_busy or not self._telling.is_idle else self.still_steps + 1
        self._telling.flush()
        for desk in list(self.desks.values()):
            self._look_after(desk)
        open_desks = [desk for desk in self.desks.values() if desk.is_ours and desk.is_open]
        self._reading.follow(open_desks)
        if not self.is_draining:
            self._reading.read(timeout_ms if waits_for_topic else 0)
        self._reading.take_answers(self.desks)
        for desk in self.desks.values():
            if desk.is_open or desk.own_burials:
                self._reading.copy(desk, self._terms.lease_ms)
        self._taking.look_around()
        for desk in self._in_turn(open_desks):
            if not self.is_draining:
                self._reading.reread(desk)
                if not desk.is_learning:
                    self._taking.take(desk)
        self.tail.keep_snapshots()

    def _in_turn(self, desks: list[Desk]) -> list[Desk]:
        """So that no partition always has the first pick."""
        self._turn += 1
        first = self._turn % len(desks) if desks else 0
        return desks[first:] + desks[:first]

    def _look_after(self, desk: Desk) -> None:
        number, now_ms = desk.partition, self._now_ms()
        fold = self.tail.fold(number)
        if fold.halt is not None:
            self._disown(desk)
            desk.is_halted = True
            self._let_go(desk)
            return
        if desk.fold is not fold:
            self._begin_anew(desk, fold)
        desk.watch_clock(fold.clock_ms, now_ms, self._terms.lease_ms)
        if desk.is_open or self.is_draining:
            self.positions[number] = fold.machine.position
        for hand in [hand for epoch, hand in desk.hands.items() if epoch not in fold.machine.leases]:
            del desk.hands[hand.epoch]
            self._taking.lost(hand)
        self._telling.repeat(desk)
        self._taking.drop_overdue(desk)
        self._telling.renew(desk)
        if not desk.is_ours and desk.is_idle:
            self.tail.leave([number])
            del self.desks[number]
        elif desk.is_ours and not desk.is_open:
            self._open(desk)
        elif desk.rescan_at_ms and now_ms >= desk.rescan_at_ms:
            desk.scan(fold.machine)

    def _let_go(self, desk: Desk) -> None:
        """Of a halted partition nothing is read back any more: what we hold or asked for there ends unanswered."""
        self._taking.drop_overdue(desk)
        desk.tells.clear()
        desk.unsent.clear()
        desk.own_burials.clear()
        now_ms = self._now_ms()
        for hand in [hand for hand in desk.hands.values() if not hand.untold or not hand.lease.is_good(now_ms)]:
            del desk.hands[hand.epoch]
            self._taking.lost(hand)

    def _begin_anew(self, desk: Desk, fold: Fold[QueueMachine]) -> None:
        """The state was built from a snapshot: what became free or finished in it nobody told us."""
        was_ours, desk.fold = desk.is_ours, fold
        self._disown(desk)
        desk.is_ours = was_ours
        self._telling.give_strays_back(desk)
        for epoch, hand in desk.hands.items():
            if epoch in fold.machine.leases:
                hand.left = common(tuple(hand.left), fold.machine.leases[epoch].held)

    def _open(self, desk: Desk) -> None:
        number = desk.partition
        if not self.tail.is_caught_up(number):
            return
        fold, ours = self.tail.fold(number), self._founded(number)
        theirs = fold.genesis
        if theirs is None:
            self._ask_once(number, ours)
        elif isinstance(theirs, QueueFounded) and theirs.topic_id != ours.topic_id:
            raise GenesisMismatch(
                f"ledger {self.tail.log.name} partition {number} belongs to a topic that was deleted and made anew,"
                " or to another queue and app whose names with their dots read the same",
                next_step=f"delete {self.tail.log.name} and its snapshots if its messages are gone; else rename yours",
            )
        elif self._ask_once(number, Renewed(self.name, ())):
            # The last record may be old: what time it is in the log we know since we read one of our own.
            desk.open(fold.machine, self._new_order())
            crash_point("queue.opened")

    def _new_order(self) -> KeyOrder | None:
        if not self._terms.is_ordered:
            return None
        return KeyOrder(self._shelf, chain_max=self._terms.per_key_max, chain_max_bytes=self._terms.per_key_bytes_max)

    def _ask_once(self, number: int, record: Record) -> bool:
        """Append it, again if nothing came back for long. Whether it was read back."""
        ticket = self._opening.get(number)
        if ticket is not None and ticket.record == record and ticket.verdict is not None:
            del self._opening[number]
            return True
        if ticket is None or ticket.record != record or self._telling.is_overdue(ticket):
            self._opening[number] = self.tail.append(number, record)
        return False

    def _done_with(self, hand: Hand, ranges: Ranges, outcome: Outcome) -> None:
        """Of these the log is about to hear."""
        if outcome.kind == "released":
            self._reading.keep(self.desks[hand.partition], hand, ranges, outcome.delay_ms)
        self._taking.told(hand, ranges)

    # Answers

    def _on_read_back(self, read_back: ReadBack) -> None:
        desk = self.desks.get(read_back.partition)
        if desk is None:
            return
        ticket, record = read_back.ticket, read_back.record
        if ticket is not None and read_back.verdict is not NEVER_READ_BACK:
            desk.heard_sent_ms = max(desk.heard_sent_ms, ticket.sent_ms)
        was_to_be_told = ticket is not None and desk.tells.pop(ticket, desk) is None
        if read_back.verdict is NEVER_READ_BACK and record is not None and was_to_be_told:
            # The state was built anew from a snapshot: whether ours is in it nobody knows.
            self._telling.append_again(desk, record)
        match record:
            case Taken():
                self._taking.on_answer(desk, record, read_back, is_draining=self.is_draining)
            case Renewed():
                self._telling.on_renewed(desk, record, read_back)
            case Acked() | Released() | Buried():
                hand = self._telling.on_told(desk, record, read_back)
                if hand is not None:
                    self._taking.ended(hand)
            case _:
                pass

    def _saw(self, entry: Entry, judged: Judged) -> None:
        """Every record of our partitions, whoever wrote it: what became free, and what is finished."""
        record, desk = judged.record, self.desks.get(entry.partition)
        if desk is None or not desk.is_open:
            return
        ruling = judged.verdict if isinstance(judged.verdict, Ruling) else WITHOUT_EFFECT
        covered = ruling.covered
        match record:
            case Released():
                desk.gaps.note_released(self.tail.fold(entry.partition).machine, covered)
            case Acked() | Buried() | Dropped():
                self._finished(desk, covered)
            case Taken() if ruling.has_ended_leases:
                # What else was in them is free, and we do not know what that was. Our own questions end leases, too.
                desk.rescan_at_ms = desk.rescan_at_ms or self._now_ms() + RESCAN_MS
            case LeaseFenced() | ClockReset():
                desk.rescan_at_ms = desk.rescan_at_ms or self._now_ms() + RESCAN_MS
            case _:
                pass

    def _finished(self, desk: Desk, covered: Iterable[Range]) -> None:
        if desk.order is not None:
            for part in covered:
                desk.order.finish(*part)
