"""How large a batch may be for messages that were in a batch that failed: half of that one. Pure.

Nobody knows which message of a batch was to blame. So none is charged for it, and they come again in halves, until the
one that fails is alone and is charged. Each worker remembers it for itself, and forgets it when a message is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.queue.ranges import Range
from penstock.queue.spans import Spans
from penstock.queue.stretch import Stretch


class Halving:
    def __init__(self, batch_max: int) -> None:
        self.batch_max = batch_max
        self._limits: dict[int, Spans[int]] = {}

    def failed(self, partition: int, ranges: Iterable[Range], count: int) -> None:
        """These were in a batch of `count` messages."""
        limits = self._limits.setdefault(partition, Spans(0))
        for start, end in ranges:
            limits.put(start, end, max(1, count // 2))

    def ended(self, partition: int, ranges: Iterable[Range]) -> None:
        """They are done, or failed by themselves."""
        limits = self._limits.get(partition)
        if limits is None:
            return
        for start, end in ranges:
            limits.put(start, end, 0)
        if len(limits) == 1:
            del self._limits[partition]

    def parts(self, partition: int, stretch: Stretch) -> Iterator[tuple[Stretch, int]]:
        """The stretch in parts, with the largest batch that each may be in."""
        limits = self._limits.get(partition)
        if limits is None:
            yield stretch, self.batch_max
            return
        for run in limits.runs(stretch.start, stretch.end):
            part = stretch.within([(run.start, run.end)])
            if part is not None:
                yield part, run.value or self.batch_max
