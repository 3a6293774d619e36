"""Messages in a row, as they were read. Each spans the offsets back to the one before it, so that nothing is left
over where a transaction's markers lie between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.queue.ranges import Range

if TYPE_CHECKING:
    from penstock.kafka.reader import Received


def _offset(record: Received) -> int:
    return record.offset()


class Stretch(NamedTuple):
    """Never empty."""

    records: Sequence[Received]
    start: int

    @property
    def end(self) -> int:
        return self.records[-1].offset() + 1

    @property
    def range(self) -> Range:
        return self.start, self.end

    def starts(self) -> Iterable[int]:
        """Where the span of each message begins."""
        if self.end - self.start == len(self.records):
            return range(self.start, self.end)
        return [start for _, (start, _) in self.spans()]

    def spans(self) -> Iterator[tuple[Received, Range]]:
        """Every message with the offsets that are finished when it is."""
        start = self.start
        for record in self.records:
            end = record.offset() + 1
            yield record, (start, end)
            start = end

    def cut(self, count: int) -> tuple[Stretch, Stretch | None]:
        """The first `count` messages, and the rest."""
        if count >= len(self.records):
            return self, None
        first = Stretch(self.records[:count], self.start)
        return first, Stretch(self.records[count:], first.end)

    def within(self, ranges: Iterable[Range]) -> Iterator[Stretch]:
        """What is left of it if only these offsets are ours: a message goes with its own offset."""
        for start, end in ranges:
            low = bisect_left(self.records, start, key=_offset)
            high = bisect_left(self.records, end, low, key=_offset)
            if low < high:
                begins = self.records[low - 1].offset() + 1 if low else self.start
                yield Stretch(self.records[low:high], max(start, begins))


def stretched(records: Sequence[Received], ranges: Iterable[Range]) -> Iterator[Stretch]:
    """Records that were read again, by the ranges in which they were looked for."""
    for start, end in ranges:
        low = bisect_left(records, start, key=_offset)
        high = bisect_left(records, end, low, key=_offset)
        if low < high:
            yield Stretch(records[low:high], start)


def once_each(stretches: list[Stretch]) -> list[Stretch]:
    """The same messages, each once: what was read again may have been in a line already."""
    found: list[Stretch] = []
    reached = 0
    for stretch in sorted(stretches, key=lambda stretch: stretch.start):
        found += [stretch] if stretch.start >= reached else stretch.within([(reached, stretch.end)])
        reached = max(reached, stretch.end)
    return found
