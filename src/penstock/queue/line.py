"""Messages that wait in a line, in stretches, with their number and size at hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from penstock.queue.stretch import Stretch


class Line:
    def __init__(self) -> None:
        self.count, self.size_bytes = 0, 0
        self._stretches: deque[Stretch] = deque()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self._stretches)

    def append(self, stretch: Stretch) -> None:
        self._stretches.append(stretch)
        self.count += len(stretch.records)
        self.size_bytes += stretch.size_bytes

    def put_back(self, stretches: Sequence[Stretch]) -> None:
        """To the front, in their order."""
        self._stretches.extendleft(reversed(stretches))
        self.count += count_of(stretches)
        self.size_bytes += size_of(stretches)

    def take(self, count_max: int) -> list[Stretch]:
        """From the front, at most so many messages."""
        found: list[Stretch] = []
        while self._stretches and count_max > 0:
            first, rest = self._stretches.popleft().cut(count_max)
            if rest is not None:
                self._stretches.appendleft(rest)
            found.append(first)
            count_max -= len(first.records)
            self.count -= len(first.records)
        self.size_bytes -= size_of(found)
        return found


def count_of(stretches: Iterable[Stretch]) -> int:
    return sum(len(stretch.records) for stretch in stretches)


def size_of(stretches: Iterable[Stretch]) -> int:
    return sum(stretch.size_bytes for stretch in stretches)
