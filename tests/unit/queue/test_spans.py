"""A value for every offset: the map says what a plain list would say, at any chunk size, at a price that is flat."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue import spans
from penstock.queue.ranges import common, joined, packed, remove
from penstock.queue.spans import Run, Spans

SIZE = 40
puts = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 12), st.integers(0, 2)).map(
        lambda put: (put[0], min(SIZE, put[0] + put[1]), put[2])
    ),
    max_size=40,
)


def check(spanned: Spans[int], plain: list[int]) -> None:
    runs = spanned.runs(0, SIZE)
    assert [run.value for run in runs for _ in range(run.start, run.end)] == plain
    assert all(one.value != other.value for one, other in pairwise(runs))
    assert [spanned.at(offset) for offset in range(SIZE)] == plain
    assert all(spanned.end_of(run.start) in (run.end, None) or run is runs[-1] for run in runs)
    assert len(spanned) == len(list(spanned))


@contextmanager
def chunks_of(largest: int, small: int) -> Iterator[None]:
    before = spans._CHUNK_MAX, spans._CHUNK_SMALL
    spans._CHUNK_MAX, spans._CHUNK_SMALL = largest, small
    try:
        yield
    finally:
        spans._CHUNK_MAX, spans._CHUNK_SMALL = before


@pytest.mark.parametrize(("chunk_max", "chunk_small"), [(2, 1), (4, 2), (512, 64)])
@settings(max_examples=150, deadline=None)
@given(puts=puts)
def test_a_map_is_what_a_list_would_be(chunk_max: int, chunk_small: int, puts: list[tuple[int, int, int]]) -> None:
    with chunks_of(chunk_max, chunk_small):
        spanned, plain = Spans(0), [0] * SIZE
        for start, end, value in puts:
            spanned.put(start, end, value)
            plain[start:end] = [value] * (end - start)
            check(spanned, plain)
        loaded = Spans(9)
        loaded.load(spanned)
        assert loaded == spanned
        check(loaded, plain)


@given(puts=puts, start=st.integers(0, SIZE - 1), length=st.integers(1, SIZE))
def test_runs_are_cut_to_what_was_asked(puts: list[tuple[int, int, int]], start: int, length: int) -> None:
    spanned, plain = Spans(0), [0] * 2 * SIZE
    for low, high, value in puts:
        spanned.put(low, high, value)
        plain[low:high] = [value] * (high - low)

    runs = spanned.runs(start, start + length)

    part = plain[start : start + length]
    assert [run.value for run in runs for _ in range(run.start, run.end)] == part
    assert spanned.only(start, start + length) == (part[0] if len(set(part)) == 1 else None)


@pytest.mark.parametrize(("chunk_max", "chunk_small"), [(2, 1), (512, 64)])
@settings(max_examples=150, deadline=None)
@given(puts=puts, changes=st.lists(st.lists(st.integers(0, SIZE), min_size=2, max_size=8, unique=True), max_size=4))
def test_values_are_changed_where_they_are(
    chunk_max: int, chunk_small: int, puts: list[tuple[int, int, int]], changes: list[list[int]]
) -> None:
    with chunks_of(chunk_max, chunk_small):
        spanned, plain = Spans(0), [0] * SIZE
        for start, end, value in puts:
            spanned.put(start, end, value)
            plain[start:end] = [value] * (end - start)
        for edges in changes:
            ranges = list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
            spanned.change(ranges, lambda value: (value * 2 + 1) % 3)
            for start, end in ranges:
                plain[start:end] = [(value * 2 + 1) % 3 for value in plain[start:end]]
            check(spanned, plain)


def test_a_million_acks_in_a_row_are_one_run() -> None:
    spanned = Spans("ready")
    for start in range(0, 1_000_000, 500):
        spanned.put(start, start + 500, "finished")

    assert list(spanned) == [(0, "finished"), (1_000_000, "ready")]


def test_gaps_that_close_leave_nothing_behind() -> None:
    spanned = Spans("ready")
    for offset in range(1, 20_000, 2):
        spanned.put(offset, offset + 1, "finished")
    assert len(spanned) == 20_001
    gaps = list(range(0, 20_000, 2))
    random.Random(3).shuffle(gaps)
    for offset in gaps:
        spanned.put(offset, offset + 1, "finished")

    assert spanned.runs(0, 30_000) == [Run(0, 20_000, "finished"), Run(20_000, 30_000, "ready")]
    assert len(spanned._firsts) == 1


def _seconds_for_changes(gaps: int) -> float:
    spanned = Spans("ready")
    for offset in range(1, 2 * gaps, 2):
        spanned.put(offset, offset + 1, "finished")
    chance = random.Random(5)
    places = [2 * chance.randrange(gaps) for _ in range(20_000)]
    begun = time.process_time()
    for offset in places:
        spanned.put(offset, offset + 1, "leased")
        spanned.put(offset, offset + 1, "ready")
    return time.process_time() - begun


def test_a_change_costs_about_the_same_with_a_hundred_thousand_gaps_as_with_a_hundred() -> None:
    few = min(_seconds_for_changes(100) for _ in range(3))
    many = min(_seconds_for_changes(100_000) for _ in range(3))

    assert many < 8 * few  # a flat list would be a hundred times as slow


# Ranges


def some(upto: int, count_max: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    pair = st.tuples(st.integers(0, upto), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair)))
    return st.lists(pair, max_size=count_max)


pairs = st.one_of(some(30, 6), some(300, 40))


def offsets(ranges: object) -> list[int]:
    assert isinstance(ranges, list | tuple)
    return [offset for start, end in ranges for offset in range(start, end)]


@given(pairs)
def test_packed_ranges_are_in_order_and_apart(given_ranges: list[tuple[int, int]]) -> None:
    ranges = packed(tuple(given_ranges))

    if not given_ranges:
        assert ranges is None
        return
    assert ranges is not None
    assert offsets(ranges) == sorted(set(offsets(given_ranges)))
    assert all(one[1] < other[0] for one, other in pairwise(ranges))


@pytest.mark.parametrize("bad", [(3, 3), (4, 3), (-1, 2), (0, 2**63)])
def test_a_range_that_cannot_be_spoils_the_record(bad: tuple[int, int]) -> None:
    assert packed((bad,)) is None
    assert packed(((0, 1), bad)) is None


@given(pairs, pairs)
def test_what_is_common_can_be_removed(asked: list[tuple[int, int]], given_ranges: list[tuple[int, int]]) -> None:
    held = list(joined(sorted(given_ranges)))
    both = common(joined(sorted(asked)), held)

    assert offsets(both) == sorted(set(offsets(asked)) & set(offsets(given_ranges)))
    remove(held, both)
    assert offsets(held) == sorted(set(offsets(given_ranges)) - set(offsets(asked)))
