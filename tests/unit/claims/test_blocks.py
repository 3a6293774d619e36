"""Blocks of offsets: what is in whose hands, how much to ask for, what to tell and what to leave to others."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.blocks import (
    ACKS_AT_ONCE,
    FIRST,
    Block,
    Foreseen,
    Pace,
    Spans,
    acks_due,
    block_of,
    block_size,
    foreseen,
    has_room,
    kept,
)
from penstock.claims.intervals import Interval, Status, Tenancy
from penstock.claims.records import Slot
from penstock.claims.slots import SlotState
from penstock.ledger.clock import LocalLease

SLOT = Slot("g", "t", 0)


def block(start: int = 0, end: int = 100) -> Block:
    return Block(SLOT, 7, start, end, LocalLease(lasts_ms=1_000))


def tenancy(*, renewed_ms: int = 0, producer: str | None = None, is_to_bury: bool = False) -> Tenancy:
    return Tenancy(owner=("a", "i"), epoch=7, renewed_ms=renewed_ms, producer=producer, is_to_bury=is_to_bury)


def state(*items: Interval, position: int = 0, frontier: int | None = None) -> SlotState:
    made = SlotState(position=position)
    made.map.items = list(items)
    made.map.frontier = frontier if frontier is not None else max((item.end for item in items), default=position)
    return made


spans = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))


@given(st.lists(st.tuples(st.booleans(), spans)))
def test_spans_are_a_set_of_offsets_in_sorted_disjoint_pieces(changes: list[tuple[bool, tuple[int, int]]]) -> None:
    ours, plain = Spans(), set[int]()
    for is_added, (start, end) in changes:
        (ours.add if is_added else ours.remove)(start, end)
        plain = plain | set(range(start, end)) if is_added else plain - set(range(start, end))

    pieces = list(ours)
    assert {offset for piece in pieces for offset in range(*piece)} == plain
    assert ours.size == len(plain)
    assert all(end < start for (_, end), (start, _) in pairwise(pieces))
    assert ours.covers(10, 20) == plain.issuperset(range(10, 20))
    assert {offset for piece in ours.within(5, 30) for offset in range(*piece)} == plain & set(range(5, 30))


@given(st.lists(st.tuples(st.sampled_from(["take", "finish", "fail", "give back"]), spans), max_size=12))
def test_every_offset_of_a_block_is_in_one_place(steps: list[tuple[str, tuple[int, int]]]) -> None:
    held = block(0, 40)
    for what, (start, end) in steps:
        match what:
            case "take":
                held.take(max(held.next, min(end, held.stop)), now_ms=1)
            case "finish":
                held.finish(start, min(end, held.next))
            case "fail":
                held.fail(start, min(end, held.next))
            case "give back":
                held.give_back(max(start, held.next))
        places = [held.open, held.finished, held.failed, held.returned]
        assert sum(place.size for place in places) == 40
        assert held.open.covers(held.next, held.stop) or held.untouched == 0
        assert held.outstanding == held.open.size - held.untouched >= 0


def test_what_was_let_go_is_neither_minded_nor_told() -> None:
    held = block()
    held.take(10, now_ms=1)
    held.finish(0, 4)
    held.let_go()

    assert list(held.finished) == [(0, 4)]
    assert list(held.returned) == [(10, 100)]
    assert list(held.minded) == [(0, 4)]
    held.settle(0, 4, is_done=True)
    held.settle(10, 100, is_done=False)
    assert held.is_settled
    assert not held.minded


@pytest.mark.parametrize(
    ("size", "deliveries", "is_to_bury", "is_suspect"),
    [(1, 2, False, True), (1, 1, False, False), (2, 2, False, False), (1, 6, True, False)],
)
def test_a_single_offset_that_came_before_is_a_suspect(
    size: int, deliveries: int, is_to_bury: bool, is_suspect: bool
) -> None:
    held = tenancy(is_to_bury=is_to_bury)
    granted = Interval(start=5, end=5 + size, status=Status.CLAIMED, deliveries=deliveries, tenancy=held)

    assert block_of(SLOT, granted, held, sent_ms=0, lasts_ms=100).is_suspect is is_suspect


def test_blocks_become_a_second_of_work_by_steps() -> None:
    pace = Pace()
    sizes = []
    for _ in range(6):
        sizes.append(block_size(pace, window=1_000_000, members=1))
        pace.worked(count=50_000, elapsed_ms=1_000)

    assert sizes == [64, 512, 4_096, 32_768, 50_000, 50_000]
    pace.worked(count=3, elapsed_ms=1_500)
    assert block_size(pace, window=1_000_000, members=1) == 2


def test_everybody_has_room_in_the_window() -> None:
    assert block_size(Pace(10**6), window=1_200, members=4) == 100
    assert block_size(Pace(10**6), window=2, members=4) == 1


def test_free_and_lost_offsets_are_foreseen_before_the_frontier() -> None:
    done = Interval(start=0, end=4, status=Status.DONE)
    free = Interval(start=4, end=9, status=Status.FREE, deliveries=1)
    lost = Interval(start=4, end=9, status=Status.LOST, deliveries=1, most=1)

    assert foreseen(state(done, free), window=10, expired_before_ms=0) == Foreseen(True, 4)
    assert foreseen(state(done, lost), window=10, expired_before_ms=0) == Foreseen(True, 4, is_alone=True)
    assert foreseen(state(done), window=10, expired_before_ms=0) == Foreseen(True, 4)
    assert foreseen(state(done), window=4, expired_before_ms=0) == Foreseen(False, 4)


def test_an_expired_range_is_foreseen_unless_a_producer_must_be_fenced_first() -> None:
    large = Interval(start=0, end=64, status=Status.CLAIMED, deliveries=1, tenancy=tenancy(renewed_ms=5))
    fenced = Interval(start=0, end=64, status=Status.CLAIMED, deliveries=1, tenancy=tenancy(producer="p"))

    assert foreseen(state(large), window=64, expired_before_ms=5) == Foreseen(True, 0, is_expired=True)
    assert not foreseen(state(large), window=64, expired_before_ms=4).is_any
    assert not foreseen(state(fenced), window=64, expired_before_ms=5).is_any


def test_one_block_in_work_and_one_ahead_are_enough() -> None:
    present, ahead = block(0, 10), block(10, 20)
    prospect = Foreseen(True, 20)

    assert has_room([], prospect, end=0)
    assert not has_room([present], prospect, end=0)
    present.take(3, now_ms=1)
    assert has_room([present], prospect, end=0)
    assert not has_room([present, ahead], prospect, end=0)


def test_blocks_behind_the_end_keep_nobody_from_asking_for_messages_that_are_there() -> None:
    ahead = block(100, 200)

    assert has_room([ahead], Foreseen(True, 40), end=60)
    assert not has_room([ahead], Foreseen(True, 40), end=30)


def test_scattered_acks_are_few_records_until_the_block_is_over() -> None:
    finished = Spans([(0, 1), *((offset, offset + 1) for offset in range(2, 60, 2)), (80, 95)])

    due = acks_due(finished, from_=0, is_last=False)

    assert len(due) == ACKS_AT_ONCE
    assert due[0] == (0, 1)
    assert (80, 95) in due
    assert acks_due(finished, from_=0, is_last=True) == list(finished)


def test_a_block_that_waits_for_messages_keeps_a_few_offsets() -> None:
    idle = block(0, 1_000)

    assert kept(idle, now_ms=99, idle_ms=100) == 1_000
    assert kept(idle, now_ms=100, idle_ms=100) == FIRST


def test_a_slow_block_keeps_about_two_seconds_of_work() -> None:
    slow = block(0, 1_000)
    slow.take(10, now_ms=0)

    assert kept(slow, now_ms=1_999, idle_ms=100) == 990
    assert kept(slow, now_ms=4_000, idle_ms=100) == 5
