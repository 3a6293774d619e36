"""Offsets as packed ranges: pairs [a, b), sorted, apart from each other. So one record covers a batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

Range = tuple[int, int]
Ranges = tuple[Range, ...]

OFFSET_MAX = 2**63 - 1
"""Kafka's own bound. Whatever somebody writes, the state must fit into a snapshot."""

_start_of = itemgetter(0)


def packed(given: Ranges) -> Ranges | None:
    """The same offsets in order and without overlap; none if a range is empty, turned round or out of bounds."""
    reached = -1
    for start, end in given:
        if not reached < start < end:
            are_ranges = all(0 <= start < end <= OFFSET_MAX for start, end in given)
            return joined(sorted(given)) if are_ranges else None
        reached = end
    return given if given and reached <= OFFSET_MAX else None


def joined(pieces: Iterable[Range]) -> Ranges:
    """Pieces in the order of their starts, with neighbours as one."""
    found: list[Range] = []
    for start, end in pieces:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def common(asked: Sequence[Range], held: Sequence[Range]) -> list[Range]:
    """What is in both, which are in order; quick where few are asked for and many are held, and where both are many."""
    if len(asked) > 1 and _is_all_held(asked, held):
        return list(asked)
    found: list[Range] = []
    index, count = 0, len(held)
    for part in asked:
        start, end = part
        if index < count and held[index][1] <= start:
            # Mostly it is the next one.
            index += 1
            if index < count and held[index][1] <= start:
                index = bisect_right(held, start, index, key=_start_of) - 1
        if index < count:
            low, high = held[index]
            if low <= start and end <= high:
                found.append(part)
                continue
        at = index
        while at < count and held[at][0] < end:
            low, high = held[at]
            if high > start:
                found.append((max(start, low), min(end, high)))
            at += 1
    return found


def _is_all_held(asked: Sequence[Range], held: Sequence[Range]) -> bool:
    """Whether it is one of the frequent cases: all lies in one range, or is ranges as they are held, in a row."""
    first = bisect_right(held, asked[0][0], key=_start_of) - 1
    return first >= 0 and (asked[-1][1] <= held[first][1] or list(held[first : first + len(asked)]) == list(asked))


def take_out(held: list[Range], asked: Ranges) -> Ranges:
    """What is in both, which are in order; it is held no more."""
    if len(asked) == len(held) and list(asked) == held:
        held.clear()
        return asked
    found = tuple(common(asked, held))
    remove(held, found)
    return found


def remove(held: list[Range], parts: Sequence[Range]) -> None:
    """Take away parts, in order, each of which lies within one of the ranges held."""
    if not parts:
        return
    first = last = bisect_right(held, parts[0][0], key=_start_of) - 1
    if len(parts) > 1 and held[first : first + len(parts)] == list(parts):
        del held[first : first + len(parts)]
        return
    low, high = held[first]
    left: list[Range] = []
    for start, end in parts:
        while start >= high:
            if low < high:
                left.append((low, high))
            last += 1
            low, high = held[last]
        if low < start:
            left.append((low, start))
        low = end
    if low < high:
        left.append((low, high))
    held[first : last + 1] = left


def outside(whole: Range, ranges: Sequence[Range]) -> list[Range]:
    """What is left of it without these."""
    left: list[Range] = []
    reached, end = whole
    are_inside = bool(ranges) and reached <= ranges[0][0] and ranges[-1][1] <= end
    for low, high in ranges if are_inside else common((whole,), ranges):
        if low > reached:
            left.append((reached, low))
        reached = high
    if reached < end:
        left.append((reached, end))
    return left


def without(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """What is left of all these without the others, which are in order."""
    return [part for whole in ranges for part in outside(whole, others)]


def width(ranges: Iterable[Range]) -> int:
    """How many offsets they have."""
    return sum(end - start for start, end in ranges)
