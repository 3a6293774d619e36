"""The map of a shared slot: disjoint intervals that cover everything from the position to the frontier.

    position                                         frontier
       |  done  |  claimed by a  |  lost  |  done  |  free  |      never handed out …

An epoch ends whole: as soon as a part of it is granted to another one, or it is fenced, or somebody claims the whole
slot, all that is left of it is lost. What was lost comes back in pieces of an eighth, so that one poisonous offset is
found in a few grants and its neighbours are never buried for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

Owner = tuple[str, str]
"""Client and instance."""


class Status(Enum):
    FREE = "free"
    CLAIMED = "claimed"
    LOST = "lost"
    DONE = "done"
    DEAD = "dead"

    @property
    def is_finished(self) -> bool:
        return self is Status.DONE or self is Status.DEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Who holds a claimed interval."""

    owner: Owner
    epoch: int
    renewed_ms: int
    producer: str | None
    is_to_bury: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    start: int
    end: int
    status: Status
    deliveries: int = 0
    charges: int = 0
    most: int = 0
    """Of a lost one: how many offsets may be granted at once. Fixed when it was lost."""
    tenancy: Tenancy | None = None

    @property
    def size(self) -> int:
        return self.end - self.start

    def is_held_by(self, owner: Owner, epoch: int) -> bool:
        return self.tenancy is not None and self.tenancy.owner == owner and self.tenancy.epoch == epoch

    def touches(self, other: Interval) -> bool:
        """Whether the two can be one: neighbours that differ in nothing else."""
        return self.end == other.start and replace(other, start=self.start, end=self.end) == self


@dataclass(slots=True)
class Intervals:
    """The map. It knows no time: who is expired is said by the caller."""

    frontier: int | None = None
    items: list[Interval] = field(default_factory=list)

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.items)

    # Looking

    def covering(self, start: int, end: int, owner: Owner, epoch: int) -> Interval | None:
        """The one interval of that owner and epoch that covers the offsets."""
        for item in self.items:
            if item.start <= start and end <= item.end and item.is_held_by(owner, epoch):
                return item
        return None

    def is_finished(self, start: int, end: int) -> bool:
        """Whether every offset is done or dead; what lies below the first interval is."""
        if self.frontier is None or end > self.frontier:
            return False
        return all(item.status.is_finished for item in self.items if item.start < end and item.end > start)

    def of_epoch(self, epoch: int) -> list[Interval]:
        return [item for item in self.items if item.tenancy is not None and item.tenancy.epoch == epoch]

    # Changing

    def put(self, part: Interval) -> None:
        """Replace whatever covers the part's offsets; neighbours that differ in nothing become one."""
        around: list[Interval] = []
        for item in self.items:
            if item.end <= part.start or item.start >= part.end:
                around.append(item)
                continue
            if item.start < part.start:
                around.append(replace(item, end=part.start))
            if item.end > part.end:
                around.append(replace(item, start=part.end))
        self.items = _merged(sorted([*around, part], key=lambda item: item.start))

    def extend(self, part: Interval) -> None:
        """Hand out what was never handed out, at the frontier."""
        self.items = _merged([*self.items, part])
        self.frontier = part.end

    def end_epoch(self, epoch: int) -> None:
        ended = (
            _lost(item) if item.tenancy is not None and item.tenancy.epoch == epoch else item for item in self.items
        )
        self.items = _merged(ended)

    def settle(self, position: int | None) -> int | None:
        """Move the position over the finished prefix; what lies below it goes. Returns the new position."""
        if position is None:
            return None
        if self.items:
            self.items = list(_above(self.items, position))
            while self.items and self.items[0].start == position and self.items[0].status.is_finished:
                position = self.items.pop(0).end
        self.frontier = position if self.frontier is None else max(self.frontier, position)
        return position

    def clear(self, frontier: int | None) -> None:
        self.items, self.frontier = [], frontier

    def dump(self) -> Any:
        return [self.frontier, [_dumped(item) for item in self.items]]

    def load(self, dumped: Any) -> None:
        self.frontier, self.items = dumped[0], [_loaded(item) for item in dumped[1]]


def _lost(item: Interval) -> Interval:
    alone = 1 if item.size == 1 else 0
    return replace(item, status=Status.LOST, tenancy=None, most=max(1, item.size // 8), charges=item.charges + alone)


def _above(items: Iterable[Interval], position: int) -> Iterator[Interval]:
    for item in items:
        if item.end > position:
            yield item if item.start >= position else replace(item, start=position)


def _merged(items: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for item in items:
        if merged and merged[-1].touches(item):
            merged[-1] = replace(merged[-1], end=item.end)
        else:
            merged.append(item)
    return merged


def _dumped(item: Interval) -> list[Any]:
    held = item.tenancy
    tenancy = None if held is None else [held.owner, held.epoch, held.renewed_ms, held.producer, held.is_to_bury]
    return [item.start, item.end, item.status.value, item.deliveries, item.charges, item.most, tenancy]


def _loaded(dumped: list[Any]) -> Interval:
    start, end, status, deliveries, charges, most, held = dumped
    tenancy = held and Tenancy(
        owner=(held[0][0], held[0][1]), epoch=held[1], renewed_ms=held[2], producer=held[3], is_to_bury=held[4]
    )
    return Interval(
        start=start,
        end=end,
        status=Status(status),
        deliveries=deliveries,
        charges=charges,
        most=most,
        tenancy=tenancy or None,
    )
