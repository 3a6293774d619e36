"""A batch: its messages are made when they are looked at, each once."""

from __future__ import annotations

import threading
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_records import Record, hand, values

from penstock.queue.cells import READY
from penstock.queue.message import Batch, Message
from penstock.queue.ranges import joined
from penstock.queue.stretch import row


def batch(*parts: tuple[int, list[int]]) -> Batch:
    """Of stretches, each by its start and the offsets of its messages."""
    given: Any = [(f"hand {start}", row([Record(each) for each in offsets], start)) for start, offsets in parts]  # type: ignore[misc]
    return Batch(given, None)  # type: ignore[arg-type]


def test_any_one_is_the_same_as_among_all() -> None:
    apart, all_of_them = (
        batch((0, [0, 1, 4]), (7, [9]), (20, [20, 21])),
        batch((0, [0, 1, 4]), (7, [9]), (20, [20, 21])),
    )

    picked = [apart[number] for number in (5, 0, 3, 2, 4, 1)]

    expected = {message.offset: (message._span, message._hand) for message in all_of_them}
    assert len(apart) == len(expected) == 6
    assert [message.offset for message in picked] == [21, 0, 9, 4, 20, 1]
    assert {message.offset: (message._span, message._hand) for message in picked} == expected
    assert expected[4] == ((2, 5), "hand 0")
    assert expected[9] == ((7, 10), "hand 7")


def test_each_is_made_once_and_in_order_however_it_is_looked_at() -> None:
    one = batch((0, [0, 1, 2]), (5, [5, 6]))
    last = one[-1]

    listed = list(one)

    assert listed[-1] is last
    assert list(one) == listed == list(one[:])
    assert [message.offset for message in one[1:4]] == [1, 2, 5]
    assert one[3] is listed[3]


def test_two_threads_that_look_at_it_at_once_see_the_same_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch((0, [0, 1, 2]))
    seen: list[list[Message]] = []
    other = threading.Thread(target=lambda: seen.append(list(one)))

    class Slow(Message):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            if other.ident is None:
                other.start()
                other.join(0.2)  # it may be done meanwhile, or have to wait for us

    monkeypatch.setattr("penstock.queue.message.Message", Slow)

    ours = list(one)

    other.join(10)
    assert [id(message) for message in seen[0]] == [id(message) for message in ours]
    assert one[1] is ours[1]


def test_beyond_its_end_there_is_nothing() -> None:
    with pytest.raises(IndexError):
        batch((0, [0, 1]))[2]
    with pytest.raises(IndexError):
        batch((0, [0, 1]))[-3]


def test_attempts_are_told_of_all_at_once_as_each_would_tell_its_own() -> None:
    fresh, again, third = READY, READY._replace(charges=1), READY._replace(charges=2)
    mixed = hand(values(b"a", b"b", b"c", start=10))
    mixed.cells = [(again, ((10, 11),)), (third, ((11, 12),)), (again, ((12, 13),))]
    one = hand(values(b"d", b"e"), cell=fresh)
    several = Batch([(each, stretch) for each in (mixed, one) for stretch in each.stretches], None)  # type: ignore[arg-type]

    assert several.attempts() == [2, 3, 2, 1, 1]
    assert several.attempts() == [message.attempt for message in several]


@given(attempts=st.lists(st.integers(1, 3), min_size=1, max_size=40), cut=st.integers(0, 40))
def test_the_attempts_of_a_hand_are_those_of_its_cells_however_it_is_cut(attempts: list[int], cut: int) -> None:
    whole = values(*[b"x"] * len(attempts), start=10)
    stretches = [part for part in whole.cut(cut) if part is not None] if cut else [whole]
    one = hand(*stretches)
    one.cells = [
        (READY._replace(charges=attempt - 1), joined((offset, offset + 1) for offset, _ in alike))
        for attempt, alike in groupby(enumerate(attempts, 10), key=itemgetter(1))
    ]

    assert [attempt for stretch in stretches for attempt in one.attempts(stretch)] == attempts
    assert [one.cell_of(10 + n).attempt for n in range(len(attempts))] == attempts
    assert one.attempts_at([10 + n for n in range(len(attempts))][cut:]) == attempts[cut:]
