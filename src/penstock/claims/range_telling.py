"""What a member tells the log of its blocks: every record is said again until it was read back."""

from __future__ import annotations

from penstock.claims.blocks import Block, Span, acks_due
from penstock.claims.records import (
    ProducersFenced,
    RangeAcked,
    RangeBuried,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
    Slot,
)
from penstock.claims.sight import Sight
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.ledger.tail import ReadBack, Tail, Ticket

Settling = RangeAcked | RangeReleased | RangeBuried
Telling = Settling | RangeRenewed | RangeFenced | ProducersFenced


class Teller:
    """Appends records of one member, and remembers which ones were not read back yet."""

    def __init__(self, tail: Tail[Claims], sight: Sight, *, client: str, heartbeat_ms: int) -> None:
        self._tail, self._sight, self._heartbeat_ms = tail, sight, heartbeat_ms
        self.sender = client, tail.instance
        self._sent: dict[Telling, Ticket] = {}

    @property
    def under_way(self) -> int:
        return sum(not isinstance(record, RangeRenewed) for record in self._sent)

    def forget(self, epoch: int) -> None:
        """The epoch is over; what is said of it does not matter any more."""
        self._sent = {record: ticket for record, ticket in self._sent.items() if record.epoch != epoch}

    def answered(self, read_back: ReadBack) -> Ticket | None:
        """The ticket of a record that was read back, if it is the one that we wait for."""
        ticket = read_back.ticket
        record = None if ticket is None else ticket.record
        if isinstance(record, Telling) and self._sent.get(record) is ticket:
            del self._sent[record]
            return ticket
        return None

    # What there is to tell of a block

    def say_again(self) -> None:
        for record, ticket in list(self._sent.items()):
            if self._sight.is_overdue(ticket):
                self._append(record)

    def progress(self, block: Block, now_ms: int) -> None:
        """Acks in packs, every HB/3 or when the block is over; what failed or is given back, at once."""
        is_over = not block.open
        if block.finished and (is_over or now_ms - block.told_ms >= self._heartbeat_ms // 3):
            block.told_ms = now_ms
            for span in acks_due(block.finished, from_=block.start, is_last=is_over):
                block.finished.remove(*span)
                self._append((RangeBuried if block.is_to_bury else RangeAcked)(*self._named(block, span)))
                crash_point("claims.range_acked")
        for span in block.failed:
            block.failed.remove(*span)
            self._append(RangeReleased(*self._named(block, span), counts=True))
            crash_point("claims.range_failed")
        for span in block.returned:
            block.returned.remove(*span)
            self._append(RangeReleased(*self._named(block, span), counts=False))
            crash_point("claims.range_returned")

    def renewal(self, block: Block, now_ms: int) -> None:
        """Every HB/3, as long as there is something left of it."""
        record = RangeRenewed(block.slot, *self.sender, block.token)
        is_due = block.lease.is_due(now_ms, every_ms=self._heartbeat_ms // 3)
        if is_due and record not in self._sent and (block.open or block.minded):
            self._append(record)
            crash_point("claims.range_renewed")

    def stray(self, slot: Slot, epoch: int, span: Span) -> None:
        """A grant that nobody waits for any more."""
        self.once(RangeReleased(slot, *self.sender, epoch, *span, counts=False))

    def once(self, record: Telling) -> None:
        if record not in self._sent:
            self._append(record)

    def _named(self, block: Block, span: Span) -> tuple[Slot, str, str, int, int, int]:
        client, instance = self.sender
        return block.slot, client, instance, block.token, *span

    def _append(self, record: Telling) -> None:
        before = self._sent.get(record)
        if before is not None:
            self._tail.forget(before)
        self._sent[record] = self._tail.append(self._sight.number(record.slot), record)
