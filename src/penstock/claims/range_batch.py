"""What a consumer of ranges is handed: records of one block, acked or failed one by one or all together."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.claims.batch import TimedBatch
from penstock.claims.blocks import Block, Span
from penstock.claims.range_member import RangeMember
from penstock.errors import Fenced
from penstock.kafka.reader import Received


class RangeBatch(TimedBatch):
    """Handed out under the epoch of one block."""

    __slots__ = ("_member", "block", "end", "start")

    def __init__(self, records: list[Received], member: RangeMember, block: Block, span: Span) -> None:
        super().__init__(records)
        self._member, self.block = member, block
        self.start, self.end = span
        for gap in _gaps(records, span):
            member.finish(block, *gap)

    @property
    def token(self) -> int:
        return self.block.token

    @property
    def is_lost(self) -> bool:
        is_ours = not self.is_over and self._member.is_good(self.block)
        return not is_ours and not self._member.is_done(self.block, self.start, self.end)

    @property
    def is_over(self) -> bool:
        # What was given back lies behind what is still handed out.
        return not self.block.is_held or self.end > self.block.next

    def unfinished(self) -> list[int]:
        left = self._member.left(self.block, self.start, self.end)
        return [record.offset() for record in self.records if left.covers(record.offset(), record.offset() + 1)]

    def finish(self, offset: int) -> None:
        self._member.finish(self.block, offset, offset + 1)

    def ack(self) -> None:
        self._check(self._member.finish(self.block, self.start, self.end))

    def ack_one(self, offset: int) -> None:
        self._check(self._member.finish(self.block, offset, offset + 1))

    def fail(self) -> None:
        self._check(self._member.fail(self.block, self.start, self.end))

    def fail_one(self, offset: int) -> None:
        self._check(self._member.fail(self.block, offset, offset + 1))

    def _check(self, is_ours: bool) -> None:
        if not is_ours:
            slot = self.block.slot
            raise Fenced(
                f"the range of {slot.topic}/{slot.partition} from {self.start} on passed on while it was worked on",
                next_step="drop this work; the new holder does it",
            )


def _gaps(records: list[Received], span: Span) -> Iterator[Span]:
    """Offsets that are no messages: markers of transactions, aborted records, what compaction took."""
    start, end = span
    if len(records) == end - start:
        return
    for record in records:
        offset = record.offset()
        if offset > start:
            yield start, offset
        start = offset + 1
    if start < end:
        yield start, end
