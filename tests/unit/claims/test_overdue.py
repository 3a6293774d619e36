"""What is overdue, and what becomes of it: without a broker, on times that are given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.claims.batch import PartitionBatch, Work
from penstock.claims.overdue import BURY_AGAIN_S, Hands, Watch, Ways
from penstock.claims.progress import Progress
from penstock.claims.records import Slot
from penstock.claims.tenure import Tenure
from penstock.claims.terms import OnOverdue
from penstock.errors import Fenced, TransientError
from penstock.kafka.reader import Received
from penstock.ledger.clock import LocalLease
from penstock.observe import events
from penstock.observe.events import subscribed
from penstock.values import duration


class Record:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


class Holder:
    def __init__(self) -> None:
        self.good, self.held = True, True

    def is_good(self, work: Work) -> bool:
        return self.good

    def is_held(self, work: Work) -> bool:
        return self.held


def batch_of(holder: Holder, *offsets: int, work: Work | None = None) -> PartitionBatch:
    work = work or Work(
        Tenure(Slot("g", "orders", 0), 7, LocalLease(lasts_ms=1), 0, 0), Progress(offsets[0]), offsets[0]
    )
    return PartitionBatch([cast(Received, Record(offset)) for offset in offsets], work, holder)


def test_only_what_was_handed_out_long_ago_and_is_not_finished_is_overdue() -> None:
    hands, batch = Hands(), batch_of(Holder(), 0, 1, 2, 3)
    hands.give(batch, [0], 10.0)
    hands.give(batch, [1], 11.0)
    hands.give(batch, [2], 12.0)
    batch.ack_one(0)

    assert list(hands.take_overdue(11.5)) == [(batch, {1: 11.0})]
    assert list(hands.take_overdue(11.5)) == []
    assert list(hands.take_overdue(12.5)) == [(batch, {2: 12.0})]


def test_what_passed_on_is_forgotten_and_what_is_doubtful_for_a_moment_is_not() -> None:
    holder = Holder()
    hands, batch = Hands(), batch_of(holder, 0)
    hands.give(batch, [0], 1.0)

    holder.good = False
    assert list(hands.take_overdue(2.0)) == []
    holder.good = True
    assert list(hands.take_overdue(2.0)) == [(batch, {0: 1.0})]
    hands.give(batch, [0], 3.0)
    holder.held = False
    assert list(hands.take_overdue(4.0)) == []
    holder.held = True
    assert list(hands.take_overdue(4.0)) == []


class Told:
    """A watch whose ways are written down."""

    def __init__(self, on_overdue: OnOverdue) -> None:
        self.buried: list[int] = []
        self.released: list[object] = []
        self.stalls: list[float] = []
        self.trouble = False
        ways = Ways(bury=self._bury, release=self.released.append, stalled=self.stalls.append)
        self.watch = Watch(duration("1s"), on_overdue, ways, group="g")

    def _bury(self, records: list[Received], reason: str) -> None:
        assert reason == "not acked within 1s"
        if self.trouble:
            raise TransientError("away")
        self.buried += [record.offset() for record in records]


@pytest.fixture
def told() -> Iterator[list[Any]]:
    seen: list[Any] = []
    with subscribed(seen.append):
        yield seen


FAR_S = 1e9


def test_each_way_is_told_and_taken(told: list[Any]) -> None:
    ways = {0: "dead_letter", 1: "skip", 2: "release"}
    there, batch = Told(lambda message: cast(Any, ways[message.offset])), batch_of(Holder(), 0, 1, 2)
    there.watch.given(batch, [0, 1, 2])

    there.watch.look(FAR_S)

    assert [(event.offset, event.way) for event in told] == list(ways.items())
    assert there.buried == [0]
    assert there.released == [batch]
    assert batch.unfinished() == [2]
    assert batch.work.tenure.position == 2


def test_a_burial_that_fails_holds_the_position_and_is_tried_again(told: list[Any]) -> None:
    there, batch = Told("dead_letter"), batch_of(Holder(), 0)
    there.trouble = True
    there.watch.given(batch, [0])

    there.watch.look(FAR_S)
    assert batch.unfinished() == [0]
    assert [type(event) for event in told] == [events.MessageOverdue, events.BurialFailed]
    there.trouble = False
    there.watch.look(FAR_S + BURY_AGAIN_S / 2)
    assert there.buried == []
    there.watch.look(FAR_S + BURY_AGAIN_S)
    assert there.buried == [0]
    assert batch.unfinished() == []
    assert len(told) == 2


@pytest.mark.parametrize("answer", ["nonsense", None])
def test_a_function_that_raises_or_answers_nonsense_loses_nothing(told: list[Any], answer: object) -> None:
    def on_overdue(message: object) -> Any:
        if answer is None:
            raise RuntimeError("no idea")
        return answer

    there, batch = Told(on_overdue), batch_of(Holder(), 0)
    there.watch.given(batch, [0])
    there.watch.look(FAR_S)

    assert there.released == [batch]
    assert isinstance(told[0], events.CallbackFailed)


def test_a_batch_that_cannot_be_handled_keeps_no_other_from_it() -> None:
    holder, released = Holder(), list[object]()
    first, second = batch_of(holder, 0), batch_of(holder, 1)

    def release(batch: object) -> None:
        released.append(batch)
        if batch is first:
            raise Fenced("it passed on")

    ways = Ways(bury=lambda records, reason: None, release=release, stalled=lambda away_s: None)
    watch = Watch(duration("1s"), "release", ways, group="g")
    watch.given(first, [0])
    watch.given(second, [1])

    watch.look(FAR_S)

    assert released == [first, second]


def test_a_burial_that_breaks_keeps_no_other_from_it(told: list[Any]) -> None:
    buried: list[int] = []

    def bury(records: list[Received], reason: str) -> None:
        if records[0].offset() == 0:
            raise RuntimeError("no such thing")
        buried.append(records[0].offset())

    ways = Ways(bury=bury, release=lambda batch: None, stalled=lambda away_s: None)
    watch = Watch(duration("1s"), "dead_letter", ways, group="g")
    for offset in (0, 1):
        watch.given(batch_of(Holder(), offset), [offset])

    watch.look(FAR_S)

    assert buried == [1]
    assert [type(event) for event in told].count(events.BurialFailed) == 1


def test_it_is_a_stall_only_while_nobody_comes_back() -> None:
    there, holder = Told("skip"), Holder()
    first, second = batch_of(holder, 0), batch_of(holder, 1)
    there.watch.given(first, [0])
    there.watch.back()
    there.watch.look(FAR_S)
    assert there.stalls == []

    there.watch.given(second, [1])
    there.watch.look(FAR_S)
    assert len(there.stalls) == 1
    there.watch.look(FAR_S)
    assert len(there.stalls) == 1


def test_acks_of_many_threads_are_all_counted() -> None:
    batch = batch_of(Holder(), *range(2_000))
    messages = list(batch)
    threads = [
        threading.Thread(target=lambda part=part: [message.ack() for message in messages[part::8]]) for part in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert batch.unfinished() == []
    assert batch.work.tenure.position == 2_000
