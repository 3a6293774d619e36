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
    if not given:
        return None
    for start, end in given:
        if not 0 <= start < end <= OFFSET_MAX:
            return None
    return given if len(given) == 1 else joined(sorted(given))


def joined(pieces: Iterable[Range]) -> Ranges:
    """Pieces in the order of their starts, with neighbours as one."""
    found: list[Range] = []
    for start, end in pieces:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def common(asked: Ranges, held: Sequence[Range]) -> list[Range]:
    """What is in both; quick where few are asked for and many are held."""
    found: list[Range] = []
    for start, end in asked:
        index = max(0, bisect_right(held, start, key=_start_of) - 1)
        while index < len(held) and held[index][0] < end:
            low, high = held[index]
            if high > start:
                found.append((max(start, low), min(end, high)))
            index += 1
    return found


def remove(held: list[Range], part: Range) -> None:
    """Take away a part that lies within one of the ranges held."""
    start, end = part
    index = bisect_right(held, start, key=_start_of) - 1
    low, high = held[index]
    left = [(low, start)] if low < start else []
    held[index : index + 1] = [*left, (end, high)] if end < high else left
