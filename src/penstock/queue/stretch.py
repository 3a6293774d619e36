"""Messages in a row, as they were read. Each spans the offsets back to the one before it, so that nothing is left
over where a transaction's markers lie between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.queue.ranges import Range

if TYPE_CHECKING:
    from penstock.kafka.reader import Received


def _offset(record: Received) -> int:
    return record.offset()


@dataclass(slots=True)
class Stretch:
    """Never empty, never changed."""

    records: Sequence[Received]
    start: int
    _size_bytes: int | None = field(default=None, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """Of all values; added up once, because it costs as much as anything else that is done for each message."""
        if self._size_bytes is None:
            # The client's records have the length of their values.
            self._size_bytes = sum(map(len, self.records))
        return self._size_bytes

    @property
    def end(self) -> int:
        return self.records[-1].offset() + 1

    @property
    def range(self) -> Range:
        return self.start, self.end

    def start_of(self, number: int) -> int:
        """Where the span of one message begins."""
        return self.records[number - 1].offset() + 1 if number else self.start

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
        return first, Stretch(self.records[count:], first.end, self.size_bytes - first.size_bytes)

    def within(self, ranges: Iterable[Range]) -> Iterator[Stretch]:
        """What is left of it if only these offsets are ours: a message goes with its own offset."""
        records, first = self.records, self.start
        for start, low, high in self._places(ranges):
            if high - low == len(records) and start <= first:
                yield self
            else:
                yield Stretch(records[low:high], max(start, self.start_of(low)))

    def count_within(self, ranges: Iterable[Range]) -> int:
        """How many of its messages have their own offset in these."""
        return sum(high - low for _, low, high in self._places(ranges))

    def _places(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int, int]]:
        """For each range that has messages of it: its start, and which ones these are."""
        records, first, last = self.records, self.start, self.end
        is_dense = last - first == len(records)
        for start, end in ranges:
            if end <= first or start >= last:
                continue
            if start <= first and last <= end:
                yield start, 0, len(records)
            elif is_dense:
                yield start, max(start - first, 0), min(end, last) - first
            else:
                low = bisect_left(records, start, key=_offset)
                high = bisect_left(records, end, low, key=_offset)
                if low < high:
                    yield start, low, high


def parts_within(stretches: Iterable[Stretch], ranges: Sequence[Range]) -> Iterator[Stretch]:
    """What is left of stretches if only these offsets are ours; both are in order."""
    for stretch, near in _side_by_side(stretches, ranges):
        yield from stretch.within(near)


def count_within(stretches: Iterable[Stretch], ranges: Sequence[Range]) -> int:
    return sum(stretch.count_within(near) for stretch, near in _side_by_side(stretches, ranges))


def _side_by_side(stretches: Iterable[Stretch], ranges: Sequence[Range]) -> Iterator[tuple[Stretch, Sequence[Range]]]:
    """Each stretch with the ranges that touch it: many of both would otherwise be compared each with each."""
    low = 0
    for stretch in stretches:
        while low < len(ranges) and ranges[low][1] <= stretch.start:
            low += 1
        high = low
        while high < len(ranges) and ranges[high][0] < stretch.end:
            high += 1
        if low < high:
            yield stretch, ranges[low:high]


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
