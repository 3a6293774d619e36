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
    runs = spanned.runs(0, len(plain))
    assert [run.value for run in runs for _ in range(run.start, run.end)] == plain
    assert all(one.value != other.value for one, other in pairwise(runs))
    assert [spanned.at(offset) for offset in range(len(plain))] == plain
    assert all(spanned.end_of(run.start) in (run.end, None) or run is runs[-1] for run in runs)
    assert len(spanned) == len(list(spanned))
    assert [chunk[0] for chunk in spanned._starts] == spanned._firsts
    assert all(len(chunk) < spans._CHUNK_MAX + spans._CHUNK_SMALL for chunk in spanned._starts)


@contextmanager
def chunks_of(largest: int, small: int, few: int = spans._FEW) -> Iterator[None]:
    before = spans._CHUNK_MAX, spans._CHUNK_SMALL, spans._FEW
    spans._CHUNK_MAX, spans._CHUNK_SMALL, spans._FEW = largest, small, few
    try:
        yield
    finally:
        spans._CHUNK_MAX, spans._CHUNK_SMALL, spans._FEW = before


@pytest.mark.parametrize(("chunk_max", "chunk_small"), [(2, 1), (4, 2), (512, 64)])
@settings(max_examples=150)
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
@settings(max_examples=150)
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


# Many ranges at once

WIDE = 120


@st.composite
def many_ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Mostly as regular as those of a worker are, so that the next ones meet just these runs."""
    first, width, apart = draw(st.sampled_from([(0, 1, 1), (3, 1, 2), (3, 2, 1), (4, 1, 2)]))
    ranges = [(start, start + width) for start in range(first, WIDE - width, width + apart)]
    low, high = draw(st.sampled_from([(0, 99), (0, 12), (5, 30), (9, 99)]))
    missing = draw(st.sets(st.integers(1, 20), max_size=2))
    return [part for index, part in enumerate(ranges[low:high]) if index not in missing]


many = st.lists(st.tuples(st.sampled_from(["put", "put_all", "change"]), many_ranges(), st.integers(0, 2)), max_size=8)


@pytest.mark.parametrize(("chunk_max", "chunk_small", "few"), [(2, 1, 1), (8, 3, 2), (24, 6, 1), (512, 64, 3)])
@settings(max_examples=150)
@given(actions=many, asked=many_ranges())
def test_many_ranges_at_once_are_as_good_as_one_by_one(
    chunk_max: int,
    chunk_small: int,
    few: int,
    actions: list[tuple[str, list[tuple[int, int]], int]],
    asked: list[tuple[int, int]],
) -> None:
    with chunks_of(chunk_max, chunk_small, few):
        spanned, plain = Spans(0), [0] * WIDE
        for action, ranges, value in actions:
            turned = [(old * 2 + value) % 3 if action == "change" else value for old in range(3)]
            if action == "put":
                ranges = [(ranges[0][0], ranges[-1][1])]
                spanned.put(*ranges[0], value)
            elif action == "put_all":
                spanned.put_all(ranges, value)
            else:
                spanned.change(ranges, turned.__getitem__)
            for start, end in ranges:
                plain[start:end] = [turned[old] for old in plain[start:end]]
            check(spanned, plain)
            assert set(spanned.values_in(asked)) == {plain[offset] for offset in offsets(asked)}
            by_value = spanned.by_value(asked)
            assert sorted(offsets([part for _, parts in by_value for part in parts])) == sorted(offsets(asked))
            assert all(plain[offset] == value for value, parts in by_value for offset in offsets(parts))
            assert len(by_value) == len({value for value, _ in by_value})
            assert all(list(parts) == sorted(parts) for _, parts in by_value)
            in_order = spanned.in_order(asked)
            assert list(offsets([part for _, parts in in_order for part in parts])) == list(offsets(asked))
            assert all(plain[offset] == value for value, parts in in_order for offset in offsets(parts))


class Counted(Spans[str]):
    """Knows how much was done one by one."""

    singly = 0

    def put(self, start: int, end: int, value: str) -> None:
        self.singly += 1
        super().put(start, end, value)

    def runs(self, start: int, end: int) -> list[Run[str]]:
        self.singly += 1
        return super().runs(start, end)

    def counted(self) -> int:
        counted, self.singly = self.singly, 0
        return counted


def test_what_failed_here_and_there_in_many_leases_is_hardly_touched_one_by_one() -> None:
    """As a machine does it: acked but for each hundredth, released, taken again, acked."""
    cells = Counted("ready")
    failed = [(offset, offset + 1) for offset in range(50, 100_000, 100)]
    for lease in range(20):
        start, few = lease * 5_000, failed[lease * 50 : lease * 50 + 50]
        cells.put(start, start + 5_000, "leased")
        edges = [start, *(edge for part in few for edge in part), start + 5_000]
        cells.counted()
        cells.put_all(list(zip(edges[::2], edges[1::2], strict=True)), "finished")
        assert cells.counted() <= 3
        waiting = f"waiting until {lease // 5}"
        cells.change(few, {"leased": waiting}.__getitem__)
        assert cells.counted() <= 3

    assert set(cells.values_in(failed)) == {f"waiting until {due}" for due in range(4)}
    assert cells.counted() <= 12
    cells.change(failed, lambda waiting: f"leased, was {waiting}")
    assert cells.counted() <= 12
    assert [cells.at(start) for start, _ in failed] == [f"leased, was waiting until {n // 250}" for n in range(1_000)]
    assert len(cells) == 2_002
    cells.put_all(failed, "finished")
    assert cells.counted() <= 12
    assert list(cells) == [(0, "finished"), (100_000, "ready")]


def test_many_ranges_in_one_run_are_found_and_put_at_once() -> None:
    cells = Counted("ready")
    ranges = [(offset, offset + 1) for offset in range(10, 50_000, 10)]

    assert set(cells.values_in(ranges)) == {"ready"}
    cells.put_all(ranges, "finished")
    assert cells.counted() == 0
    assert len(cells) == 2 * len(ranges) + 1
    assert all(len(chunk) <= spans._CHUNK_MAX for chunk in cells._starts)


def test_what_is_left_of_a_chunk_goes_into_the_next() -> None:
    spanned = Spans("ready")
    spanned.load((offset, "finished" if offset % 2 else "ready") for offset in range(1_000))
    assert len(spanned._firsts) == 4

    spanned.put_all([(offset, offset + 1) for offset in range(2, 250, 2)], "finished")

    assert len(spanned._firsts) == 3


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


@given(some(300, 40), st.integers(0, 20), st.integers(1, 20))
def test_ranges_in_a_row_are_common_and_go_as_they_are_held(
    given_ranges: list[tuple[int, int]], low: int, count: int
) -> None:
    held = list(joined(sorted(given_ranges)))
    asked, left = tuple(held[low : low + count]), held[:low] + held[low + count :]

    assert common(asked, tuple(held)) == list(asked)
    remove(held, asked)
    assert held == left


@given(some(300, 40), st.integers(0, 400), st.integers(1, 400))
def test_of_what_is_held_in_one_piece_all_is_common(
    given_ranges: list[tuple[int, int]], start: int, length: int
) -> None:
    asked, whole = joined(sorted(given_ranges)), set(range(start, start + length))
    held = [(start, start + length), (900, 950)]

    both = common(asked, held)

    assert offsets(both) == sorted(set(offsets(asked)) & whole)
    remove(held, both)
    assert offsets(held) == sorted((whole | set(range(900, 950))) - set(offsets(asked)))
