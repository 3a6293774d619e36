"""How messages are iterated, and how that ends: on batches that are made up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from penstock.claims.batch import Batch
from penstock.claims.consumption import Consumption
from penstock.kafka.reader import Received
from penstock.values import TopicPartition


class Record:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Handed(Batch):
    lost = False

    @property
    def token(self) -> int:
        return 0

    @property
    def is_lost(self) -> bool:
        return self.lost

    def ack(self) -> None: ...

    def ack_one(self, offset: int) -> None: ...


def batch(*offsets: int) -> Handed:
    return Handed([cast(Received, Record(offset)) for offset in offsets])


class Given(Consumption):
    """Gives these batches, one list with each question."""

    def __init__(self, *given: list[Handed], hands_out_lost: bool = False) -> None:
        super().__init__()
        self.hands_out_lost = hands_out_lost
        self.given = list(given)
        self.closed = 0
        self.asked = threading.Event()

    @property
    def partitions(self) -> list[TopicPartition]:
        return []

    def _open(self) -> None: ...

    def _next_batches(self) -> Sequence[Batch]:
        self.asked.set()
        return self.given.pop(0) if self.given else []

    def _close(self) -> None:
        self.closed += 1


def test_iterating_with_a_limit_ends_after_that_time_without_any() -> None:
    given = Given([batch(0, 1)], [], [batch(2)])

    assert [message.offset for message in given.messages(timeout_s=0.05)] == [0, 1, 2]


def test_who_breaks_off_goes_on_with_the_next_message_and_the_next_batch() -> None:
    given = Given([batch(0, 1), batch(2, 3)])

    assert next(given.messages()).offset == 0
    assert next(given.messages()).offset == 1
    assert [one.records[0].offset() for one in given.batches(timeout_s=0.05)] == [2]


def test_stop_ends_within_a_batch_and_what_is_left_is_not_handed_out() -> None:
    given, got = Given([batch(0, 1), batch(2)]), []
    for message in given:
        got.append(message.offset)
        given.stop()

    assert got == [0]
    assert list(given) == []
    assert list(given.batches()) == []


def test_what_counts_as_finished_is_handed_out_before_a_stop_ends_it() -> None:
    given, got = Given([batch(0, 1), batch(2)], hands_out_lost=True), []
    for message in given:
        got.append(message.offset)
        given.stop()

    assert got == [0, 1, 2]


@pytest.mark.parametrize("at_most_once", [False, True])
def test_what_passed_on_while_it_waited_is_handed_out_only_at_most_once(at_most_once: bool) -> None:
    first, second, third = batch(0, 1), batch(2), batch(3)
    given, got = Given([first, second, third], hands_out_lost=at_most_once), []
    for message in given.messages(timeout_s=0.05):
        got.append(message.offset)
        first.lost = second.lost = True

    assert got == ([0, 1, 2, 3] if at_most_once else [0, 3])


def test_closing_twice_or_from_another_thread_closes_once_and_ends_the_iteration() -> None:
    given = Given()
    with given:
        iterating = threading.Thread(target=lambda: list(given))
        iterating.start()
        assert given.asked.wait(60)
        given.close()
        iterating.join(60)
        assert not iterating.is_alive()

    assert given.closed == 1
