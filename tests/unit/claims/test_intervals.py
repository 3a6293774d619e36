"""The map of a shared slot against a naive model: one cell for every offset."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.intervals import Interval, Intervals, Status, Tenancy

SIZE = 40

tenancies = st.builds(
    Tenancy,
    owner=st.sampled_from([("a", "1"), ("b", "1")]),
    epoch=st.integers(1, 4),
    renewed_ms=st.just(0),
    producer=st.sampled_from([None, "p"]),
)
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 12)).map(
    lambda span: (span[0], min(SIZE, span[0] + span[1]))
)


@st.composite
def parts(draw: st.DrawFn) -> Interval:
    start, end = draw(spans)
    status = draw(st.sampled_from(list(Status)))
    return Interval(
        start=start,
        end=end,
        status=status,
        charges=draw(st.integers(0, 1)),
        most=1 if status is Status.LOST else 0,
        tenancy=draw(tenancies) if status is Status.CLAIMED else None,
    )


def covered(*changes: Interval) -> Intervals:
    """A map of free offsets with these put into it, one after another."""
    intervals = Intervals()
    intervals.extend(Interval(start=0, end=SIZE, status=Status.FREE))
    for change in changes:
        intervals.put(change)
    return intervals


def cells(intervals: Intervals) -> dict[int, Interval]:
    """What is said of each offset, without where its interval begins and ends."""
    said = [(offset, replace(item, start=0, end=0)) for item in intervals for offset in range(item.start, item.end)]
    assert len(said) == len(dict(said)), "intervals overlap"
    return dict(said)


def naive(*changes: Interval) -> dict[int, Interval]:
    said = dict.fromkeys(range(SIZE), Interval(start=0, end=0, status=Status.FREE))
    for change in changes:
        said.update(dict.fromkeys(range(change.start, change.end), replace(change, start=0, end=0)))
    return said


def assert_canonical(intervals: Intervals) -> None:
    """Sorted, without gaps or overlaps, and no neighbours that could be one."""
    items = list(intervals)
    assert all(left.end == right.start for left, right in pairwise(items))
    assert all(item.start < item.end for item in items)
    assert not any(left.touches(right) for left, right in pairwise(items))


@given(st.lists(parts(), max_size=12))
def test_put_says_of_every_offset_what_was_said_last(changes: list[Interval]) -> None:
    intervals = covered(*changes)

    assert cells(intervals) == naive(*changes)
    assert_canonical(intervals)


@given(st.lists(parts(), max_size=12), st.integers(1, 4))
def test_an_epoch_ends_whole_and_nothing_else_does(changes: list[Interval], epoch: int) -> None:
    intervals, before = covered(*changes), naive(*changes)
    runs = {offset: item.size for item in intervals for offset in range(item.start, item.end)}

    intervals.end_epoch(epoch)

    for offset, cell in cells(intervals).items():
        was = before[offset]
        if was.tenancy is None or was.tenancy.epoch != epoch:
            assert cell == was
            continue
        assert (cell.status, cell.tenancy, cell.deliveries) == (Status.LOST, None, was.deliveries)
        assert cell.most == max(1, runs[offset] // 8)
        assert cell.charges == was.charges + (runs[offset] == 1)
    assert intervals.of_epoch(epoch) == []


@given(st.lists(parts(), max_size=12), st.integers(0, SIZE + 5))
def test_settle_moves_over_the_finished_prefix_and_drops_what_lies_below(changes: list[Interval], to: int) -> None:
    intervals, before = covered(*changes), naive(*changes)
    expected = to
    while expected in before and before[expected].status.is_finished:
        expected += 1

    assert intervals.settle(to) == expected
    assert cells(intervals) == {offset: cell for offset, cell in before.items() if offset >= expected}
    assert intervals.frontier == max(SIZE, expected)


def test_settle_knows_no_position_where_there_is_none() -> None:
    intervals = Intervals()

    assert intervals.settle(None) is None
    assert intervals.frontier is None


@given(st.lists(parts(), max_size=12), spans)
def test_is_finished_asks_every_offset(changes: list[Interval], span: tuple[int, int]) -> None:
    said = naive(*changes)

    assert covered(*changes).is_finished(*span) == all(said[offset].status.is_finished for offset in range(*span))


def test_nothing_beyond_the_frontier_is_finished() -> None:
    intervals = covered(Interval(start=0, end=SIZE, status=Status.DONE))

    assert intervals.is_finished(0, SIZE)
    assert not intervals.is_finished(SIZE - 1, SIZE + 1)


@given(st.lists(parts(), max_size=12), spans, st.integers(1, 4))
def test_covering_finds_the_one_range_that_holds_all_of_it(
    changes: list[Interval], span: tuple[int, int], epoch: int
) -> None:
    intervals, owner = covered(*changes), ("a", "1")

    found = intervals.covering(*span, owner, epoch)

    said = naive(*changes)
    held = [said[offset] for offset in range(*span)]
    is_one_range = len(set(held)) == 1 and held[0].tenancy is not None
    is_own = is_one_range and held[0].tenancy is not None and held[0].is_held_by(owner, epoch)
    assert (found is not None) == is_own
    if found is not None:
        assert found.start <= span[0] < span[1] <= found.end


@given(st.lists(parts(), max_size=12))
def test_a_map_loads_what_it_dumped(changes: list[Interval]) -> None:
    intervals, loaded = covered(*changes), Intervals()

    loaded.load(intervals.dump())

    assert loaded == intervals
