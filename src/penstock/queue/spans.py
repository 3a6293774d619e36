"""A value for every offset, kept as runs of equal values: a million acks in a row are one run.

    0          500        501               740                     … for ever
    | finished | waiting  | finished        | ready

The runs are in chunks of a bounded size, so that a change costs the same with a hundred thousand gaps as with none:
to find the place is a bisection, to change it moves one chunk. Many small ranges are mostly parts of one run, or runs
with one other between each: such are changed by slices, and only the rest one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, count, groupby
from operator import ne
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")

_CHUNK_MAX = 512
_CHUNK_SMALL = 64
_FEW = 8
"""So many ranges are about as quick one by one."""


class Run(NamedTuple, Generic[V]):
    """Offsets from `start` to before `end` that have the same value."""

    start: int
    end: int
    value: V


class Spans(Generic[V]):
    """A map from offsets (0 and up, without end) to values. Neighbouring runs always differ: equal maps look equal."""

    def __init__(self, value: V) -> None:
        self._firsts = [0]
        """The first start in every chunk."""
        self._starts: list[list[int]] = [[0]]
        self._values: list[list[V]] = [[value]]

    def __len__(self) -> int:
        """How many runs there are."""
        return sum(map(len, self._starts))

    def __iter__(self) -> Iterator[tuple[int, V]]:
        """Every run by its start; each ends where the next one starts, the last one never."""
        for starts, values in zip(self._starts, self._values, strict=True):
            yield from zip(starts, values, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def at(self, offset: int) -> V:
        chunk = bisect_right(self._firsts, offset) - 1
        return self._values[chunk][bisect_right(self._starts[chunk], offset) - 1]

    def end_of(self, offset: int) -> int | None:
        """Where the run that holds the offset ends; none for the last one."""
        chunk = bisect_right(self._firsts, offset) - 1
        starts = self._starts[chunk]
        index = bisect_right(starts, offset)
        if index < len(starts):
            return starts[index]
        return self._firsts[chunk + 1] if chunk + 1 < len(self._firsts) else None

    def only(self, start: int, end: int) -> V | None:
        """The value of all these offsets, if they have the same."""
        chunk = bisect_right(self._firsts, start) - 1
        starts = self._starts[chunk]
        index = bisect_right(starts, start)
        if index < len(starts):
            is_one = end <= starts[index]
        else:
            is_one = chunk + 1 == len(self._firsts) or end <= self._firsts[chunk + 1]
        return self._values[chunk][index - 1] if is_one else None

    def runs(self, start: int, end: int) -> list[Run[V]]:
        """All that lies within these offsets, cut to them."""
        chunk = bisect_right(self._firsts, start) - 1
        starts, values = self._starts[chunk], self._values[chunk]
        index = bisect_right(starts, start)
        found: list[Run[V]] = []
        while True:
            if index < len(starts):
                upto = starts[index]
            else:
                upto = self._firsts[chunk + 1] if chunk + 1 < len(self._firsts) else end
            if upto >= end:
                found.append(Run(start, end, values[index - 1]))
                return found
            found.append(Run(start, upto, values[index - 1]))
            start, index = upto, index + 1
            if index > len(starts):
                chunk, index = chunk + 1, 1
                starts, values = self._starts[chunk], self._values[chunk]

    def values_in(self, ranges: Sequence[tuple[int, int]]) -> list[V]:
        """All values that these offsets have, some more than once. The ranges are in order, apart from each other."""
        return [value for value, _ in self.in_order(ranges)]

    def by_value(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[V, tuple[tuple[int, int], ...]]]:
        """These offsets by the value they have. The ranges are in order, apart from each other."""
        found: dict[V, list[tuple[int, int]]] = {}
        for value, parts in self.in_order(ranges):
            found.setdefault(value, []).extend(parts)
        return [(value, tuple(parts)) for value, parts in found.items()]

    def in_order(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[V, Sequence[tuple[int, int]]]]:
        """These offsets in order with the values they have, as many together as could be found at once."""
        found: list[tuple[V, Sequence[tuple[int, int]]]] = []
        for start, end in _one_by_one(ranges, partial(self._find_at_once, found, ranges)):
            found += [(run.value, ((run.start, run.end),)) for run in self.runs(start, end)]
        return found

    def put(self, start: int, end: int, value: V) -> None:
        """Give these offsets one value, whatever they had."""
        if self._put_within(start, end, value):
            return
        chunk = self._one_chunk(start, end, value)
        starts, values = self._starts[chunk], self._values[chunk]
        low = bisect_left(starts, start)
        high = bisect_left(starts, end, low)
        is_boundary = starts[high] == end if high < len(starts) else self._firsts[chunk + 1 : chunk + 2] == [end]
        is_new = low == 0 or values[low - 1] != value
        new_starts, new_values = ([start], [value]) if is_new else ([], [])
        if not is_boundary and values[high - 1] != value:
            new_starts.append(end)
            new_values.append(values[high - 1])
        if is_boundary and high < len(starts) and values[high] == value:
            high += 1
        starts[low:high], values[low:high] = new_starts, new_values
        self._keep_size(chunk)

    def put_all(self, ranges: Sequence[tuple[int, int]], value: V) -> None:
        """Give all these offsets one value. The ranges are in order, apart from each other."""
        for start, end in _one_by_one(ranges, partial(self._change_at_once, lambda _: value)):
            self.put(start, end, value)

    def change(self, ranges: Sequence[tuple[int, int]], changed: Callable[[V], V]) -> None:
        """Give these offsets other values, made of those they have: `changed` knows nothing else.

        The ranges are in order, apart from each other.
        """
        old = new = None
        for start, end in _one_by_one(ranges, partial(self._change_at_once, changed)):
            value = self.only(start, end)
            if value is None:
                for run in self.runs(start, end):
                    self.put(run.start, run.end, changed(run.value))
                continue
            if new is None or value is not old:
                old, new = value, changed(value)
            self.put(start, end, new)

    def _put_within(self, start: int, end: int, value: V) -> bool:
        """The two changes that are made most: a part out of the middle of a run, and a run between two others."""
        chunk = bisect_right(self._firsts, start) - 1
        starts, values = self._starts[chunk], self._values[chunk]
        index = bisect_right(starts, start) - 1
        if index + 1 >= len(starts):
            return False
        upto, old = starts[index + 1], values[index]
        if starts[index] < start and end < upto:
            if old != value:
                starts[index + 1 : index + 1] = (start, end)
                values[index + 1 : index + 1] = (value, old)
                if len(starts) > _CHUNK_MAX:
                    self._split(chunk)
            return True
        if index and starts[index] == start and end == upto and values[index - 1] != value != values[index + 1]:
            values[index] = value
            return True
        return False

    def _find_at_once(
        self,
        found: list[tuple[V, Sequence[tuple[int, int]]]],
        ranges: Sequence[tuple[int, int]],
        edges: list[int],
        at: int,
    ) -> int:
        """As many ranges as lie in the middle of one run, or are runs with one other between each."""
        chunk, index, inside = self._place(edges, at)
        reached = at // 2
        if inside:
            found.append((self._values[chunk][index - 1], ranges[reached : reached + inside]))
            return inside
        whole = self._whole(edges, at, chunk, index)
        for value, alike in groupby(self._values[chunk][index : index + 2 * whole : 2]):
            first, reached = reached, reached + len(list(alike))
            found.append((value, ranges[first:reached]))
        return whole

    def _change_at_once(self, changed: Callable[[V], V], edges: list[int], at: int) -> int:
        """Change as many ranges as lie in the middle of one run, or are runs between equal ones; how many it were."""
        chunk, index, inside = self._place(edges, at)
        starts, values = self._starts[chunk], self._values[chunk]
        if inside:
            old = values[index - 1]
            new = changed(old)
            if new != old:
                starts[index:index] = edges[at : at + 2 * inside]
                values[index:index] = [new, old] * inside
                self._keep_size(chunk)
            return inside
        whole = self._whole(edges, at, chunk, index) if index else 0
        if not whole:
            return 0
        beside, olds = values[index - 1 : index + 2 * whole : 2], values[index : index + 2 * whole : 2]
        whole = min(_equal_ones(beside) - 1, _equal_ones(olds))
        high = index + 2 * whole
        new = changed(olds[0])
        if new != beside[0]:
            values[index:high:2] = [new] * whole
        else:
            del starts[index:high], values[index:high]
            self._keep_size(chunk)
        return whole

    def _place(self, edges: list[int], at: int) -> tuple[int, int, int]:
        """Where the ranges from that edge on begin: the chunk, and the first run in it that is not before them.

        And how many of them lie in the middle of the run before that one.
        """
        chunk = bisect_right(self._firsts, edges[at]) - 1
        starts = self._starts[chunk]
        index = bisect_left(starts, edges[at])
        upto = (starts[index : index + 1] or self._firsts[chunk + 1 : chunk + 2] or [edges[-1] + 1])[0]
        return chunk, index, (bisect_left(edges, upto, at) - at) // 2

    def _whole(self, edges: list[int], at: int, chunk: int, index: int) -> int:
        """How many of the ranges from that edge on are runs, from that one on, with one other between each."""
        starts = self._starts[chunk]
        asked = edges[at : at + len(starts) - index]
        return _alike(asked, starts[index : index + len(asked)]) // 2

    def load(self, runs: Iterable[tuple[int, V]]) -> None:
        """Become the map that was iterated over."""
        given = list(runs)
        pieces = [given[index : index + _CHUNK_MAX // 2] for index in range(0, len(given), _CHUNK_MAX // 2)]
        self._firsts = [piece[0][0] for piece in pieces]
        self._starts = [[start for start, _ in piece] for piece in pieces]
        self._values = [[value for _, value in piece] for piece in pieces]

    def _one_chunk(self, start: int, end: int, value: V) -> int:
        """The chunk in which this change can be made: with those at its edges, where the value goes on in them."""
        firsts = self._firsts
        low = bisect_right(firsts, start) - 1
        high = low if low + 1 == len(firsts) or end <= firsts[low + 1] else bisect_left(firsts, end) - 1
        if low and firsts[low] == start and self._values[low - 1][-1] == value:
            low -= 1
        if high + 1 < len(firsts) and firsts[high + 1] == end and self._values[high + 1][0] == value:
            high += 1
        if low != high:
            self._fuse(low, high)
        return low

    def _fuse(self, low: int, high: int) -> None:
        """Make one of two chunks; what is between them is about to be overwritten."""
        self._starts[low : high + 1] = [self._starts[low] + self._starts[high]]
        self._values[low : high + 1] = [self._values[low] + self._values[high]]
        del self._firsts[low + 1 : high + 1]

    def _keep_size(self, chunk: int) -> None:
        size = len(self._starts[chunk])
        if size > _CHUNK_MAX:
            self._split(chunk)
        elif size < _CHUNK_SMALL and chunk + 1 < len(self._firsts):
            self._fuse(chunk, chunk + 1)

    def _split(self, chunk: int) -> None:
        starts, values = self._starts[chunk], self._values[chunk]
        size = len(starts) // (len(starts) // (_CHUNK_MAX // 2)) + 1
        cuts = range(0, len(starts), size)
        self._starts[chunk : chunk + 1] = [starts[cut : cut + size] for cut in cuts]
        self._values[chunk : chunk + 1] = [values[cut : cut + size] for cut in cuts]
        self._firsts[chunk : chunk + 1] = [starts[cut] for cut in cuts]


def _equal_ones(values: Sequence[object]) -> int:
    """How many at the beginning are equal."""
    return len(list(next(groupby(values))[1]))


def _alike(some: Sequence[object], others: Sequence[object]) -> int:
    """How many at the beginning are equal in both, which are of one length."""
    return len(some) if some == others else next(compress(count(), map(ne, some, others)))


def _one_by_one(
    ranges: Sequence[tuple[int, int]], at_once: Callable[[list[int], int], int]
) -> Iterable[tuple[int, int]]:
    """The ranges that the caller must see to, while `at_once` does as many of the others as it can, and says so."""
    return ranges if len(ranges) < _FEW else _left_over(ranges, at_once)


def _left_over(
    ranges: Sequence[tuple[int, int]], at_once: Callable[[list[int], int], int]
) -> Iterator[tuple[int, int]]:
    edges = list(chain.from_iterable(ranges))
    reached = alone = 0
    while reached < len(ranges):
        done = at_once(edges, 2 * reached)
        reached += done
        # One at the border of a chunk may have to become one with what is before it. Where slices are of no use, they
        # are tried less and less.
        alone = 1 if done >= _FEW or not alone else max(_FEW, 2 * alone)
        yield from ranges[reached : reached + alone]
        reached += alone
