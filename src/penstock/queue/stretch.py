"""Messages of one partition in the order of their offsets, as they were read, and the offsets that are finished with
them. Each spans those back to the one before it, so that nothing is left over where a transaction's markers lie.

    offsets    3  4  5  6  7  …  20 21
    messages      a  b     c        d       ranges (3, 8) and (20, 22): 3 and 4 are finished with a, 20 and 21 with d
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.queue.parcel import parcel_of
from penstock.queue.ranges import Range, Ranges, common, joined, width

if TYPE_CHECKING:
    from penstock.kafka.reader import Received

_start_of, _end_of = itemgetter(0), itemgetter(1)


def _offset(record: Received) -> int:
    return record.offset()


@dataclass(slots=True)
class Stretch:
    """Never empty, never changed."""

    records: Sequence[Received]
    """All of one type."""
    ranges: Ranges
    """In order and apart from each other; each ends with a message."""
    _size_bytes: int | None = field(default=None, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """Of all values; added up once, because it costs as much as anything else that is done for each message."""
        if self._size_bytes is None:
            # The client's records have the length of their values.
            self._size_bytes = sum(map(len, self.records))
        return self._size_bytes

    @property
    def start(self) -> int:
        return self.ranges[0][0]

    @property
    def end(self) -> int:
        return self.ranges[-1][1]

    @property
    def _is_dense(self) -> bool:
        """Whether every offset has its message, without a hole."""
        return len(self.ranges) == 1 and self.end - self.start == len(self.records)

    def span_of(self, number: int) -> Range:
        """The offsets that are finished with one message."""
        offset = self.records[number].offset()
        if len(self.ranges) == len(self.records):
            return self.ranges[number]
        start = self.ranges[bisect_right(self.ranges, offset, key=_start_of) - 1][0]
        if number:
            start = max(start, self.records[number - 1].offset() + 1)
        return start, offset + 1

    def spans_at(self, numbers: Sequence[int]) -> list[Range]:
        """The same of several."""
        if self._is_dense:
            return [(start, start + 1) for start in map(self.start.__add__, numbers)]
        return list(map(self.span_of, numbers))

    def starts(self) -> Iterable[int]:
        """Where the span of each message begins."""
        if self._is_dense:
            return range(self.start, self.end)
        if len(self.ranges) == len(self.records):
            return map(_start_of, self.ranges)
        return [start for _, (start, _) in self._walked()]

    def spans(self) -> Iterator[tuple[Received, Range]]:
        """Every message with the offsets that are finished when it is."""
        if len(self.ranges) == len(self.records):
            return zip(self.records, self.ranges, strict=True)
        return self._walked()

    def _walked(self) -> Iterator[tuple[Received, Range]]:
        ranges = iter(self.ranges)
        start, upto = next(ranges)
        for record in self.records:
            end = record.offset() + 1
            if end > upto:
                start, upto = next(ranges)
            yield record, (start, end)
            start = end

    def cut(self, count: int) -> tuple[Stretch, Stretch | None]:
        """The first `count` messages, and the rest."""
        if count >= len(self.records):
            return self, None
        end = self.records[count - 1].offset() + 1
        index = bisect_left(self.ranges, end, key=_end_of)
        start, upto = self.ranges[index]
        first = Stretch(self.records[:count], (*self.ranges[:index], (start, end)))
        left = ((end, upto), *self.ranges[index + 1 :]) if end < upto else self.ranges[index + 1 :]
        return first, Stretch(self.records[count:], left, self.size_bytes - first.size_bytes)

    def within(self, ranges: Sequence[Range]) -> Stretch | None:
        """What is left of it if only these offsets, in order and apart, are ours: a message goes with its own."""
        if self.ranges == ranges:
            return self
        if self._is_dense:
            first, left = self.start, tuple(common(ranges, self.ranges))
            pieces = [self.records[start - first : end - first] for start, end in left]
        else:
            places = list(self._places(ranges))
            left = tuple(part for part, _, _ in places)
            pieces = [self.records[low:high] for _, low, high in places]
        if not left:
            return None
        return self if left == self.ranges else Stretch(list(chain.from_iterable(pieces)), left)

    def count_within(self, ranges: Sequence[Range]) -> int:
        """How many of its messages have their own offset in these."""
        if self.ranges == ranges:
            return len(self.records)
        if self._is_dense:
            return width(common(ranges, self.ranges))
        return sum(high - low for _, low, high in self._places(ranges))

    def _places(self, ranges: Sequence[Range]) -> Iterator[tuple[Range, int, int]]:
        """What of these ranges is finished with messages of it, and which ones these are."""
        records = self.records
        for start, end in common(ranges, self.ranges):
            low = bisect_left(records, start, key=_offset)
            high = bisect_left(records, end, low, key=_offset)
            if low < high:
                yield (start, records[high - 1].offset() + 1), low, high


def row(records: Sequence[Received], start: int) -> Stretch:
    """Messages as they were read one after another; `start` is where the first one's span begins."""
    return Stretch(records, ((start, records[-1].offset() + 1),))


def spanned(spans: Iterable[tuple[Received, Range]]) -> Stretch:
    """Some messages, in order, each with its span."""
    records, ranges = zip(*spans, strict=True)
    is_mixed = len(set(map(type, records))) > 1
    alike = [copy for record in records for copy in parcel_of([record]).unpacked()] if is_mixed else list(records)
    return Stretch(alike, joined(ranges))


def found_in(ranges: Iterable[Range], records: Sequence[Received], offsets: Sequence[int]) -> Stretch | None:
    """Records, with their offsets, that were read again in these ranges: with each range a span begins."""
    found: list[Received] = []
    spans: list[Range] = []
    for start, end in ranges:
        low = bisect_left(offsets, start)
        high = bisect_left(offsets, end, low)
        if low < high:
            found += records[low:high]
            spans.append((start, offsets[high - 1] + 1))
    return Stretch(found, tuple(spans)) if found else None


# Several of them


def ranges_of(stretches: Sequence[Stretch]) -> Ranges:
    """All their offsets; they are in order, and none begins before the one before it ends."""
    found: list[Range] = []
    for stretch in stretches:
        if found and found[-1][1] == stretch.start:
            start, _ = found.pop()
            found.append((start, stretch.ranges[0][1]))
            found += stretch.ranges[1:]
        else:
            found += stretch.ranges
    return tuple(found)


def parts_within(stretches: Iterable[Stretch], ranges: Sequence[Range]) -> list[Stretch]:
    """What is left of stretches if only these offsets are ours."""
    parts = (stretch.within(near) for stretch, near in _side_by_side(stretches, ranges))
    return [part for part in parts if part is not None]


def count_within(stretches: Iterable[Stretch], ranges: Sequence[Range]) -> int:
    return sum(stretch.count_within(near) for stretch, near in _side_by_side(stretches, ranges))


def _side_by_side(stretches: Iterable[Stretch], ranges: Sequence[Range]) -> Iterator[tuple[Stretch, Sequence[Range]]]:
    """Each stretch with the ranges that touch it: many of both would otherwise be compared each with each."""
    for stretch in stretches:
        low = bisect_right(ranges, stretch.start, key=_end_of)
        high = bisect_left(ranges, stretch.end, low, key=_start_of)
        if low < high:
            yield stretch, ranges[low:high]


def once_each(stretches: list[Stretch]) -> list[Stretch]:
    """The same messages, each once, as `ranges_of` wants them: what was read again may have been in a line already."""
    in_order = sorted(stretches, key=lambda stretch: stretch.start)
    if all(one.end <= other.start for one, other in pairwise(in_order)):
        return in_order
    found: list[tuple[Received, Range]] = []
    reached = 0
    spans = (span for stretch in in_order for span in stretch.spans())
    for record, (start, end) in sorted(spans, key=lambda span: (span[1][1], span[1][0])):
        if end > reached:
            found.append((record, (max(start, reached), end)))
            reached = end
    return [spanned(found)]
