"""How a worker comes to its leases: it asks for messages that were read, up to what it may have in hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.crash import crash_point
from penstock.errors import TransientError
from penstock.ledger.clock import LocalLease
from penstock.ledger.tail import ReadBack, Tail, Ticket
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.desk import Asked, Desk, suspects_max
from penstock.queue.hand import ACKED, GIVEN_BACK, Hand, Outcome
from penstock.queue.line import Line, count_of, size_of
from penstock.queue.ranges import Range, Ranges, joined, take_out, width, without
from penstock.queue.records import ALL, Released, Taken
from penstock.queue.retry import LOST_TOO_OFTEN
from penstock.queue.rulings import Ruling
from penstock.queue.solitude import Solitude
from penstock.queue.state import QueueMachine
from penstock.queue.stretch import Stretch, once_each, parts_within, ranges_of
from penstock.queue.telling import Telling
from penstock.queue.terms import Terms

AHEAD = 2
"""Questions under way for each partition: while one is read back the next is on its way."""
_DONE_FACTOR = 4


class Taking:
    def __init__(
        self,
        tail: Tail[QueueMachine],
        desks: Mapping[int, Desk],
        telling: Telling,
        *,
        queue: str,
        terms: Terms,
        hand_out: Callable[[Hand], object],
        monotonic_ms: Callable[[], int],
        solitude: Solitude,
    ) -> None:
        self.in_hand = 0
        """Messages that were asked for or granted, and of which the log does not know yet what became of them."""
        self._tail, self._desks, self._telling, self._terms = tail, desks, telling, terms
        self._queue, self._hand_out, self._now_ms, self._solitude = queue, hand_out, monotonic_ms, solitude
        self._requests = 0
        self._in_hand_bytes, self._done = 0, 0
        self._suspects: dict[int, Asked | Hand] = {}
        self._has_loner = False

    # Asking

    def look_around(self) -> None:
        """Once for every step, before desks are looked at one by one."""
        self._has_loner = any(desk.suspects and desk.has_loner for desk in self._desks.values())
        if not self._has_loner and not self._is_one_alone():
            self._solitude.has_company(self)

    def take(self, desk: Desk) -> None:
        """Ask for what waits at this desk, as far as there is room; suspects in groups of their own."""
        machine = self._tail.fold(desk.partition).machine
        desk.welcome_freed(machine, self._now_ms())
        if not desk.buffer and not desk.suspects:
            return
        # It may have come since we looked around: freed by its key just now, or out of memory.
        self._has_loner = self._has_loner or desk.has_loner
        if self._is_one_alone() or (machine.pauses and self._is_paused(machine, desk.log_ms(self._now_ms()))):
            return
        if self._has_loner:
            if desk.has_loner and not self.in_hand and self._solitude.may_be_alone(self):
                losses = desk.losses_max
                self._ask(desk, desk.next_suspects(1), losses=losses, alone=True)
            return
        if not self._solitude.may_take(self, self.in_hand):
            return
        if desk.has_suspects:
            self._take_suspects(desk)
        while desk.buffer and len(desk.asked) < AHEAD and (room := self._room(desk.buffer)) > 0:
            self._ask(desk, desk.next_stretches(min(room, self._terms.take_max)), losses=0, alone=False)
        self._solitude.note(self, self.in_hand)

    def _take_suspects(self, desk: Desk) -> None:
        """So few that the next loss leaves fewer; of all partitions together, for they share our fate."""
        losses = desk.losses_max
        limit = suspects_max(max([losses, *(each.losses for each in self._suspects.values())]))
        room = min(limit - sum(each.count for each in self._suspects.values()), self._room())
        if room > 0:
            self._ask(desk, desk.next_suspects(room), losses=losses, alone=False)

    def _is_paused(self, machine: QueueMachine, log_ms: int) -> bool:
        """Where all queues are paused nothing is granted; where it is ours alone, we do not ask."""
        return any(machine.pause_of(queue, log_ms) is not None for queue in (ALL, self._queue))

    def _is_one_alone(self) -> bool:
        """Whether a message is in hand that nothing else may be beside."""
        return any(each.alone for each in self._suspects.values())

    def _room(self, line: Line | None = None) -> int:
        """How many more may be in hand, as large as those in this line are on average."""
        room_bytes = self._terms.in_hand_bytes_max - self._in_hand_bytes
        if room_bytes <= 0:
            return 0
        if line is not None and line.size_bytes > room_bytes:
            return min(self._room(), max(1, room_bytes * line.count // line.size_bytes))
        # What handlers are done with takes room only if the log is slow to hear of it.
        return min(
            self._terms.in_hand_max - self.in_hand + self._done, _DONE_FACTOR * self._terms.in_hand_max - self.in_hand
        )

    def told(self, hand: Hand, ranges: Ranges) -> None:
        """Handlers are done with these: only the log does not know it yet."""
        count = hand.count - hand.done
        if hand.untold:
            count = hand.count_in(ranges)
        hand.done += count
        self._done += count
        if not hand.untold and hand.is_dense and not self._terms.is_acked_first:
            # Nobody needs the messages any more: what is read next is quicker in memory that was used a moment ago.
            hand.stretches = ()

    def _ask(self, desk: Desk, stretches: list[Stretch], *, losses: int, alone: bool) -> None:
        if not stretches:
            return
        self._requests += 1
        stretches = once_each(stretches)
        ranges = ranges_of(stretches)
        question = Taken(self._tail.instance, self._requests, ranges, self._terms.lease_ms, None, alone)
        try:
            ticket = self._tail.append(desk.partition, question)
        except TransientError:
            desk.gaps.add(ranges)
            raise
        asked = Asked(ticket, stretches, count_of(stretches), size_of(stretches), losses, alone)
        desk.asked[self._requests] = asked
        self._count(asked, +1)
        crash_point("queue.asked")

    def drop_overdue(self, desk: Desk) -> None:
        """Asked in vain: ask again. A late grant is given back."""
        for number in [number for number, asked in desk.asked.items() if self._is_in_vain(desk, asked.ticket)]:
            asked = desk.asked.pop(number)
            self._tail.forget(asked.ticket)
            self._count(asked, -1)
            if desk.is_ours and desk.is_open:
                desk.put_back(asked)

    def _is_in_vain(self, desk: Desk, ticket: Ticket) -> bool:
        """Whether no answer will come. As long as nothing that was sent later came back, the log may only be slow:
        who asks again then may be granted what the first question got and lost meanwhile, and that counts as a loss.
        """
        if ticket.failure is not None:
            return True
        was_passed = desk.heard_sent_ms > ticket.sent_ms
        leases = 1 / 3 if was_passed or desk.is_halted else 3
        return self._now_ms() - ticket.sent_ms >= leases * self._terms.lease_ms

    def _count(self, what: Asked | Hand, sign: int) -> None:
        self.in_hand += sign * what.count
        self._in_hand_bytes += sign * what.size_bytes
        if sign > 0 and what.losses:
            self._suspects[id(what)] = what
        else:
            self._suspects.pop(id(what), None)
        if isinstance(what, Hand):
            self._done -= what.done
            what.done = 0
        if sign < 0:
            self._solitude.note(self, self.in_hand)

    # Answers

    def on_answer(self, desk: Desk, record: Taken, read_back: ReadBack, *, is_draining: bool) -> None:
        granted = read_back.verdict.covered if isinstance(read_back.verdict, Ruling) else ()
        asked = desk.asked.pop(record.request, None) if read_back.ticket is not None else None
        if asked is not None:
            self._count(asked, -1)
        machine = self._tail.fold(desk.partition).machine
        if read_back.offset not in machine.leases:
            # It was lost before we heard of it.
            granted = ()
        if asked is None or not desk.is_open or is_draining:
            if granted:
                # Nobody waits for it any more.
                self._telling.append(desk, Released(read_back.offset, granted))
                count = width(granted)
                tell(events.MessagesRedelivered(queue=self._queue, cause="hand_over", count=count))
            return
        if granted:
            self._grant(desk, asked, read_back.offset, granted, machine)
        if granted != record.ranges:
            # What was refused is finished, somebody else's, or to be read again when it is due.
            desk.gaps.note(machine, record.ranges)

    def _grant(self, desk: Desk, asked: Asked, epoch: int, granted: Ranges, machine: QueueMachine) -> None:
        hand = self._taken_up(desk, asked, epoch, granted, machine)
        desk.hands[epoch] = hand
        self._count(hand, +1)
        crash_point("queue.granted")
        self._give_back_unfit(desk, asked, hand, granted)
        self._announce(hand)
        if self._terms.is_acked_first:
            self._telling.tell(hand, granted, ACKED)
            return
        self._bury_the_spent(hand)
        if hand.stretches:
            self._hand_out(hand)

    def _taken_up(self, desk: Desk, asked: Asked, epoch: int, granted: Ranges, machine: QueueMachine) -> Hand:
        lease = LocalLease(lasts_ms=self._terms.lease_ms)
        lease.renewed(sent_ms=asked.ticket.sent_ms)
        if not desk.hands:
            desk.renew_at_ms = asked.ticket.sent_ms + self._terms.lease_ms // 3
        stretches, count, size_bytes = asked.stretches, asked.count, asked.size_bytes
        if granted != asked.ticket.record.ranges:  # type: ignore[attr-defined]
            stretches = parts_within(stretches, granted)
            count, size_bytes = count_of(stretches), size_of(stretches)
        return Hand(
            partition=desk.partition,
            epoch=epoch,
            stretches=stretches,
            lease=lease,
            cells=machine.cells.in_order(granted),
            losses=asked.losses,
            alone=asked.alone,
            left=list(granted),
            untold=list(granted),
            count=count,
            size_bytes=size_bytes,
            is_dense=count == width(granted),
        )

    def _give_back_unfit(self, desk: Desk, asked: Asked, hand: Hand, granted: Ranges) -> None:
        """What was granted, and cannot be worked on as it was asked for."""
        # Lost once more since it was read: it has to come again, to fewer at a time.
        lost_again = [part for cell, ranges in hand.cells if cell.losses > asked.losses for part in ranges]
        self._give_back(hand, lost_again)
        if lost_again or granted != asked.ticket.record.ranges:  # type: ignore[attr-defined]
            self._give_back(hand, _without_message(hand, granted))
            if desk.order is not None:
                self._give_back(hand, desk.order.out_of_turn(hand.stretches))

    def _give_back(self, hand: Hand, ranges: list[Range]) -> None:
        if ranges:
            self._telling.tell(hand, ranges, GIVEN_BACK)
            self._keep_back(hand, ranges)

    def _bury_the_spent(self, hand: Hand) -> None:
        """Losses alone have used up the attempts of some: these are buried without being handed out."""
        spent: list[Range] = []
        for cell, ranges in hand.cells:
            if cell.charges >= self._terms.attempts_max:
                outcome = Outcome("buried", reason=LOST_TOO_OFTEN, error=f"lost {cell.losses} times")
                self._telling.tell(hand, ranges, outcome)
                spent += ranges
        if spent:
            self._keep_back(hand, spent)

    def _keep_back(self, hand: Hand, ranges: list[Range]) -> None:
        """These messages are not to be handed out."""
        left = list(hand.untold)
        take_out(left, joined(sorted(ranges)))
        self._count(hand, -1)
        hand.stretches = parts_within(hand.stretches, left)
        hand.count, hand.size_bytes = count_of(hand.stretches), size_of(hand.stretches)
        hand.is_dense = False
        self._count(hand, +1)

    def _announce(self, hand: Hand) -> None:
        if not events.are_heard(events.MessagesReceived, events.MessagesRedelivered):
            return
        tell(events.MessagesReceived(queue=self._queue, count=hand.count))
        lost = sorted(part for cell, ranges in hand.cells if cell.losses for part in ranges)
        if lost:
            count = hand.count_in(lost)
            tell(events.MessagesRedelivered(queue=self._queue, cause="lease_lost", count=count))

    # The end of a hand

    def ended(self, hand: Hand) -> None:
        """The log knows what became of all in it."""
        if self._terms.is_acked_first:
            # The log has forgotten it, and only now it may be handed over.
            hand.is_over, hand.left = True, list(ranges_of(hand.stretches))
            if hand.left:
                self._hand_out(hand)
                return
        self._count(hand, -1)

    def lost(self, hand: Hand) -> None:
        hand.is_lost = True
        self._count(hand, -1)
        count = hand.count_in(hand.left)
        tell(events.LeaseLost(queue=self._queue, partition=hand.partition, token=hand.epoch, count=count))
        crash_point("queue.lost")

    def worked_off(self, hand: Hand, ranges: Sequence[Range]) -> None:
        """At most once: worked on, which concerns nobody but us."""
        take_out(hand.left, tuple(ranges))
        if not hand.left and hand.count:
            self._count(hand, -1)
            hand.count = 0

    def close(self) -> None:
        self._solitude.leave(self)


def _without_message(hand: Hand, granted: Ranges) -> list[Range]:
    """Offsets before a message that was not granted with them: nobody would ever say what became of them."""
    return without(granted, ranges_of(hand.stretches))
