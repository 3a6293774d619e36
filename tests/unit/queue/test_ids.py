"""Ids: unique, sorted, and of one form."""

from __future__ import annotations

import multiprocessing
import uuid

import pytest

from penstock.errors import UsageError
from penstock.queue.ids import checked_id, new_id, place_id


def test_a_new_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    made = uuid.UUID(new_id(now_ms=1_700_000_000_123))

    assert str(made) == new_id(now_ms=1_700_000_000_123)[:15] + str(made)[15:]
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_700_000_000_123


def test_ids_of_one_process_are_unique_and_sort_as_they_were_made() -> None:
    made = [new_id(now_ms=5) for _ in range(10_000)] + [new_id(now_ms=6) for _ in range(10_000)]

    assert sorted(set(made)) == made


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send([new_id(now_ms=1) for _ in range(100)]))
    child.start()
    made = ours.recv()
    child.join()

    processes = {uuid.UUID(each).int % (1 << 42) for each in [*made, new_id(now_ms=1)]}
    assert len(processes) == 2


def test_the_id_of_a_place_names_one_place_only() -> None:
    assert place_id("orders-1", 2, 3) == "orders-1/2/3"


@pytest.mark.parametrize("fine", ["1", "order-7", "é" * 100, "a b/c"])
def test_an_id_may_be_any_short_printable_text(fine: str) -> None:
    assert checked_id(fine) == fine


@pytest.mark.parametrize("wrong", ["", "x" * 201, "é" * 101, "a\nb", "\ud800", 7, b"1"])
def test_any_other_id_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not allowed; use a text of 1 to 200 bytes"):
        checked_id(wrong)
