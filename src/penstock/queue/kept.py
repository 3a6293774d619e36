"""Messages that this worker gave back a moment ago, kept so that they need not be read again when they are due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.queue.parcel import Parcel, parcel_of
from penstock.queue.ranges import Ranges, without
from penstock.queue.stretch import Stretch, once_each, parts_within, ranges_of


@dataclass(frozen=True, slots=True)
class _Packed:
    """A stretch while nobody needs its records."""

    parcel: Parcel
    ranges: Ranges
    count: int
    size_bytes: int

    def unpacked(self) -> Stretch:
        return Stretch(self.parcel.unpacked(), self.ranges, self.size_bytes)


class Kept:
    """So many and so large at most: the oldest go first, for whatever is not in here can be read again."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._count, self._size_bytes = 0, 0
        self._packed: dict[tuple[int, int], _Packed] = {}
        """By partition and first offset."""

    def __len__(self) -> int:
        return self._count

    def keep(self, partition: int, stretches: Iterable[Stretch]) -> None:
        for stretch in stretches:
            place = partition, stretch.start
            if place in self._packed:
                self._drop(place)
            count = len(stretch.records)
            self._packed[place] = _Packed(parcel_of(stretch.records), stretch.ranges, count, stretch.size_bytes)
            self._count += count
            self._size_bytes += stretch.size_bytes
        while self._count > self._count_max or self._size_bytes > self._bytes_max:
            self._drop(next(iter(self._packed)))

    def take(self, partition: int, ranges: Ranges) -> tuple[list[Stretch], Ranges]:
        """Those of these ranges that are at hand, and what is left to be read. The log treats all of them alike.

        What was kept together comes together: who is not among these is forgotten, and read again in time.
        """
        place = partition, ranges[0][0]
        whole = self._packed.get(place)
        if whole is not None and whole.ranges == ranges:
            return [self._drop(place).unpacked()], ()
        found: list[Stretch] = []
        for start, end in ranges:
            reached = start
            while (partition, reached) in self._packed and reached < end:
                packed = self._drop((partition, reached))
                found.append(packed.unpacked())
                reached = packed.ranges[0][1]
        if not found:
            return [], ranges
        parts = parts_within(once_each(found), ranges)
        taken = ranges_of(parts)
        return parts, () if taken == ranges else tuple(without(ranges, taken))

    def forget(self, partition: int) -> None:
        for place in [place for place in self._packed if place[0] == partition]:
            self._drop(place)

    def _drop(self, place: tuple[int, int]) -> _Packed:
        packed = self._packed.pop(place)
        self._count -= packed.count
        self._size_bytes -= packed.size_bytes
        return packed
