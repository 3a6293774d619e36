"""Copies of dead letters: asked for again as long as they are not there, and not made twice for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from queue_records import Record, values
from test_gaps import machine_of

from penstock.claims.dead_letters import Letter
from penstock.errors import BrokerUnavailable, InvariantBroken
from penstock.ledger.tail import Ticket
from penstock.queue import clerk as clerk_module
from penstock.queue.clerk import CopiesMade, KafkaClerk, Reread
from penstock.queue.desk import Desk
from penstock.queue.intake import Intake
from penstock.queue.reading import Reading
from penstock.queue.records import Buried, Copied, Taken
from penstock.settings import Settings
from penstock.values import TopicPartition

LETTERS = [Letter(Record(3), "why", "", 1, "")]
PLACE = ((3, 4),)


class Slow:
    """Dead letters that come when they are let, or not."""

    def __init__(self, *_: object, **__: object) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.fails: Exception | None = None
        self.count = 0

    def bury_each(self, letters: list[Letter]) -> None:
        self.begun.release()
        assert self.may_end.acquire(timeout=60)
        self.count += 1
        if self.fails:
            raise self.fails

    def close(self) -> None:
        pass


@pytest.fixture
def clerk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KafkaClerk, Slow]]:
    slow = Slow()
    monkeypatch.setattr(clerk_module, "DeadLetters", lambda *_, **__: slow)
    monkeypatch.setattr(clerk_module, "Reader", lambda *_: SimpleNamespace(close=lambda: None))
    one = KafkaClerk(Settings(), "orders", group="g")
    yield one, slow
    one.close()


def answer(clerk: KafkaClerk) -> object:
    return clerk._done.get(timeout=60)


def test_a_copy_that_is_asked_for_again_while_it_is_made_is_made_once(clerk: tuple[KafkaClerk, Slow]) -> None:
    one, slow = clerk
    one.copy(0, PLACE, LETTERS)
    assert slow.begun.acquire(timeout=60)
    one.copy(0, PLACE, LETTERS)
    one.copy(1, PLACE, LETTERS)
    slow.may_end.release(2)

    assert [answer(one), answer(one)] == [CopiesMade(0, PLACE), CopiesMade(1, PLACE)]
    assert slow.count == 2
    assert one.answers() == []


def test_a_copy_that_failed_can_be_asked_for_again(clerk: tuple[KafkaClerk, Slow]) -> None:
    one, slow = clerk
    slow.fails = BrokerUnavailable("away", next_step="wait")
    one.copy(0, PLACE, LETTERS)
    slow.may_end.release()
    one.copy(1, PLACE, LETTERS)
    # The one after it was begun: so it has ended.
    assert slow.begun.acquire(timeout=60)
    assert slow.begun.acquire(timeout=60)
    slow.fails = None
    one.copy(0, PLACE, LETTERS)
    slow.may_end.release(2)

    assert [answer(one), answer(one)] == [CopiesMade(1, PLACE), CopiesMade(0, PLACE)]


def test_a_copier_that_a_bug_ends_says_so(clerk: tuple[KafkaClerk, Slow]) -> None:
    one, slow = clerk
    slow.fails = ValueError("what is this")
    one.copy(0, PLACE, LETTERS)
    slow.may_end.release()

    assert_ended(one, one._threads[1], slow.fails)


@pytest.mark.parametrize("at", [{TopicPartition("orders", 0): 3}, {}])
def test_a_rereader_that_a_bug_ends_says_so(
    clerk: tuple[KafkaClerk, Slow], monkeypatch: pytest.MonkeyPatch, at: dict[TopicPartition, int]
) -> None:
    one, _ = clerk
    bug = ValueError("what is this")
    monkeypatch.setattr(one, "_reader", Rereader({str(at): bug}))
    one.reread(0, PLACE)

    assert_ended(one, one._threads[0], bug)


def test_a_reader_that_cannot_be_let_rest_reads_on(
    clerk: tuple[KafkaClerk, Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = clerk
    monkeypatch.setattr(one, "_reader", Rereader({"{}": BrokerUnavailable("away", next_step="wait")}))
    for _ in range(2):
        one.reread(0, PLACE)
        assert answer(one) == Reread(0, PLACE, [], 0, 4)

    assert one.failure is None


class Rereader:
    """Finds nothing, and fails where it is told to be assigned so."""

    def __init__(self, fails: dict[str, Exception]) -> None:
        self.fails = fails

    def assign(self, positions: object) -> None:
        if str(positions) in self.fails:
            raise self.fails[str(positions)]

    def ranges(self, *_: object) -> list[Any]:
        return []

    def position(self, _: object) -> int:
        return 4

    def bounds(self, _: object) -> tuple[int, int]:
        return 0, 4

    def close(self) -> None:
        pass


def assert_ended(clerk: KafkaClerk, thread: threading.Thread, bug: Exception) -> None:
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(clerk.failure, InvariantBroken)
    assert clerk.failure.__cause__ is bug
    assert str(clerk.failure) == "the clerk of orders stopped: ValueError: what is this; please report it, with the log"


@pytest.mark.parametrize("is_sent", [True, False])
def test_what_the_log_is_about_to_hear_of_is_not_copied_again(*, is_sent: bool) -> None:
    machine = machine_of(Taken("w", 1, ((0, 4),), 1_000), Buried(1, ((0, 4),), "why", "Error: what"))
    copied: list[tuple[Any, list[int]]] = []
    asked = SimpleNamespace(
        copy=lambda _, ranges, letters: copied.append((ranges, [letter.record.offset() for letter in letters]))
    )
    anything: Any = None
    reading = Reading(
        anything,
        anything,
        asked,  # type: ignore[arg-type]
        Intake(),
        append=anything,
        room_max=10,
        room_max_bytes=1_000,
        gaps_max=10,
        monotonic_ms=lambda: 0,
    )
    desk = Desk(0)
    told = Copied(((1, 2), (3, 4)))
    if is_sent:
        desk.tells[Ticket(0, told, b"", 0)] = None
    else:
        desk.unsent.append(told)

    reading._copy_buried(desk, machine, [values(b"a", b"b", b"c", b"d")])

    assert copied == [(((0, 1), (2, 3)), [0, 2])]
