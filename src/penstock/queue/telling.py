"""What a worker tells the log of its leases: that it keeps them, and what became of the messages in them.

Nothing is said until it was read back: a record that does not come back is appended again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from penstock.crash import crash_point
from penstock.errors import TransientError
from penstock.ledger.codec import Record
from penstock.ledger.tail import ReadBack, Tail, Ticket
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.desk import Desk
from penstock.queue.hand import Hand, Outcome
from penstock.queue.ranges import Range, Ranges, packed, take_out, width
from penstock.queue.records import Acked, Buried, Progressed, Released, Renewed
from penstock.queue.retry import ASKED_FOR, REASONS
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine

_ANNOUNCED: Mapping[type[Record], type[events.Event]] = {
    Acked: events.MessagesAcked,
    Released: events.MessagesRedelivered,
    Buried: events.MessagesBuried,
}


class Telling:
    """`tell` and `note_progress` may be called by any thread, all else by the worker's own."""

    def __init__(
        self,
        tail: Tail[QueueMachine],
        desks: Mapping[int, Desk],
        *,
        queue: str,
        lease_ms: int,
        monotonic_ms: Callable[[], int],
        worked_off: Callable[[Hand, Sequence[Range]], None],
        done_with: Callable[[Hand, Ranges, Outcome], None],
    ) -> None:
        """`done_with` hears what the log is told; `worked_off` what it need not be told, for it has it as finished."""
        self._tail, self._desks, self._queue, self._now_ms = tail, desks, queue, monotonic_ms
        self._every_ms = lease_ms // 3
        self._worked_off, self._done_with = worked_off, done_with
        self._told: deque[tuple[Hand, Sequence[Range], Outcome]] = deque()
        self._noted: deque[tuple[Hand, int, bytes]] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._told and not self._noted

    def tell(self, hand: Hand, ranges: Sequence[Range], outcome: Outcome) -> None:
        """What became of these offsets."""
        self._told.append((hand, ranges, outcome))

    def note_progress(self, hand: Hand, offset: int, data: bytes) -> None:
        """What the next attempt of this message is to begin with, if there has to be one."""
        self._noted.append((hand, offset, data))

    def is_overdue(self, ticket: Ticket) -> bool:
        """Whether to say it again: it was given up, or nothing came back for a third of a lease."""
        return ticket.failure is not None or self._now_ms() - ticket.sent_ms >= self._every_ms

    # What became of messages

    def flush(self) -> None:
        """One record for all that ended alike under one lease."""
        while self._noted:
            hand, offset, data = self._noted.popleft()
            if not hand.is_lost and not hand.is_over and hand.left:
                self.append(self._desks[hand.partition], Progressed(hand.epoch, offset, data))
        ended: dict[tuple[Hand, Outcome], list[Range]] = {}
        dropped: dict[Hand, int] = {}
        alike, parts = None, []
        while self._told:
            hand, ranges, outcome = self._told.popleft()
            if hand.is_over:
                self._worked_off(hand, ranges)
            elif hand.is_lost:
                dropped[hand] = dropped.get(hand, 0) + width(ranges)
            else:
                if alike is None or hand is not alike[0] or outcome is not alike[1]:
                    # Mostly it is as the one before: that costs less than to look it up.
                    alike = hand, outcome
                    parts = ended.setdefault(alike, [])
                parts += ranges
        for (hand, outcome), parts in ended.items():
            self._tell(hand, parts, outcome)
        for hand, count in dropped.items():
            tell(events.OutcomesDropped(queue=self._queue, partition=hand.partition, token=hand.epoch, count=count))
        if ended:
            crash_point("queue.told")

    def _tell(self, hand: Hand, parts: list[Range], outcome: Outcome) -> None:
        # Of one offset the log is told one thing only, whoever says what afterwards.
        ranges = take_out(hand.untold, packed(tuple(parts)) or ())
        if ranges:
            self._done_with(hand, ranges, outcome)
            self.append(self._desks[hand.partition], _record(hand.epoch, ranges, outcome))

    def on_told(self, desk: Desk, record: Acked | Released | Buried, read_back: ReadBack) -> Hand | None:
        """The log knows. Returns the hand if nothing is left in it."""
        covered = read_back.verdict.covered if isinstance(read_back.verdict, Ruling) else ()
        if isinstance(record, Buried) and covered:
            desk.own_burials.add(read_back.offset)
        hand = desk.hands.get(record.epoch)
        if hand is None:
            return None
        if covered:
            self._announce(hand, record, covered)
        take_out(hand.left, covered)
        if hand.left:
            return None
        del desk.hands[record.epoch]
        return hand

    def _announce(self, hand: Hand, record: Acked | Released | Buried, covered: Ranges) -> None:
        if not events.are_heard(_ANNOUNCED[type(record)]):
            return
        count = hand.count_in(covered)
        match record:
            case Acked():
                tell(events.MessagesAcked(queue=self._queue, count=count))
            case Released():
                # Of a batch that failed nobody is charged, and yet it failed.
                cause = "retry" if record.counts or record.error else "released"
                tell(events.MessagesRedelivered(queue=self._queue, cause=cause, count=count))
            case Buried():
                reason = record.reason if record.reason in REASONS else ASKED_FOR
                tell(events.MessagesBuried(queue=self._queue, reason=reason, count=count))

    # What must get into the log

    def append(self, desk: Desk, record: Record) -> None:
        """Into the log, and again until it is read back."""
        try:
            desk.tells[self._tail.append(desk.partition, record)] = None
        except TransientError:
            desk.unsent.append(record)

    def repeat(self, desk: Desk) -> None:
        """What did not come back; without what is of no use any more."""
        unsent, desk.unsent = desk.unsent, []
        for record in unsent:
            self.append(desk, record)
        for ticket in [ticket for ticket in desk.tells if self.is_overdue(ticket)]:
            del desk.tells[ticket]
            self._tail.forget(ticket)
            self.append_again(desk, ticket.record)

    def append_again(self, desk: Desk, record: Record) -> None:
        epoch = getattr(record, "epoch", None)
        if epoch is None or epoch in self._tail.fold(desk.partition).machine.leases:
            self.append(desk, record)

    def give_strays_back(self, desk: Desk) -> None:
        """Leases that the log has as ours and that we know nothing of: their grants came to us in a snapshot."""
        returned = {getattr(ticket.record, "epoch", None) for ticket in desk.tells}
        for epoch, lease in self._tail.fold(desk.partition).machine.leases.items():
            if lease.worker == self._tail.instance and epoch not in desk.hands and epoch not in returned:
                self.append(desk, Released(epoch, tuple(lease.held)))

    # Leases

    def renew(self, desk: Desk) -> None:
        """All leases of a partition with one record."""
        epochs, now_ms = tuple(desk.hands), self._now_ms()
        if not epochs or now_ms < desk.renew_at_ms:
            return
        if desk.renewal is not None:
            if not self.is_overdue(desk.renewal):
                return
            self._tail.forget(desk.renewal)
        desk.renew_at_ms = now_ms + self._every_ms
        desk.renewal = self._tail.append(desk.partition, Renewed(self._tail.instance, epochs))
        crash_point("queue.renewed")

    def on_renewed(self, desk: Desk, record: Renewed, read_back: ReadBack) -> None:
        if read_back.ticket is None or desk.renewal is not read_back.ticket:
            return
        desk.renewal = None
        for epoch, verdict in zip(record.epochs, read_back.verdict.parts, strict=False):
            hand = desk.hands.get(epoch)
            if hand is not None and verdict.is_accepted:
                hand.lease.renewed(sent_ms=read_back.ticket.sent_ms)


def _record(epoch: int, ranges: Ranges, outcome: Outcome) -> Record:
    match outcome.kind:
        case "acked":
            return Acked(epoch, ranges)
        case "released":
            return Released(epoch, ranges, outcome.delay_ms, outcome.counts, outcome.error)
        case "buried":
            return Buried(epoch, ranges, outcome.reason, outcome.error)
