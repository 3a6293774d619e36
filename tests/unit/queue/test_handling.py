"""Handlers, piles and crews without a broker: what is called with what, and what the log is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from queue_records import Record, hand, stretch, values
from real_kafka import eventually

from penstock.errors import UsageError
from penstock.queue.batch_pile import BatchPile
from penstock.queue.calling import call_of
from penstock.queue.cells import Cell, Status
from penstock.queue.crew import Crew, crew_of
from penstock.queue.halving import Halving
from penstock.queue.hand import ACKED, GIVEN_BACK, Hand, Outcome
from penstock.queue.message import Batch, Bury, Message, Retry
from penstock.queue.pile import Manner, MessagePile, Pile
from penstock.queue.ranges import Range
from penstock.queue.retry import RetryRules
from penstock.queue.stretch import row


@dataclass
class Order:
    id: int


class Log:
    """What was told, as a worker would hear it."""

    def __init__(self) -> None:
        self.told: list[tuple[Range, Outcome]] = []
        self.good = True

    def tell(self, given: Hand, ranges: Sequence[Range], outcome: Outcome) -> None:
        self.told += [(part, outcome) for part in ranges]

    def kinds(self) -> dict[int, str]:
        return {offset: outcome.kind for (start, end), outcome in self.told for offset in range(start, end)}

    def wait(self, count: int) -> None:
        eventually(lambda: len(self.kinds()) >= count)


class Setting:
    def __init__(
        self, function: Callable[..., Any], *, batch: int | None = None, concurrency: int = 1, **manner: Any
    ) -> None:
        self.log = Log()
        call = call_of(function, batch=batch)
        self.manner = Manner(
            queue="orders", decode=call.decode, chance=lambda: 0.0, **({"rules": RetryRules(attempts_max=3)} | manner)
        )
        worker: dict[str, Any] = {
            "tell": self.log.tell,
            "is_good": lambda given: self.log.good and not given.is_lost,
            "note_progress": lambda *_: None,
        }
        self.pile: Pile[Any] = (
            MessagePile(self.manner, **worker) if batch is None else BatchPile(self.manner, batch_max=batch, **worker)
        )
        self.crew: Crew[Any] = crew_of(call, self.pile, concurrency=concurrency)

    def __enter__(self) -> Setting:
        return self

    def __exit__(self, *_: object) -> None:
        self.crew.close()


# How a handler is called


def test_a_handler_gets_what_its_parameters_ask_for() -> None:
    got: list[Any] = []

    def plain(order: Order) -> None:
        got.append(order)

    def both(order: Order, message: Message) -> None:
        got.append((order, message.offset))

    def by_name(message, body):  # type: ignore[no-untyped-def]
        got.append((message.offset, body))

    class Object:
        def __call__(self, text: str, more: int = 5) -> None:
            got.append(text)

    for function in (plain, both, by_name, Object()):
        with Setting(function) as setting:
            setting.crew.give(hand(values(b'{"id": 7}')))
            setting.log.wait(1)

    assert got == [Order(7), (Order(7), 0), (0, b'{"id": 7}'), '{"id": 7}']


def test_a_batch_handler_gets_payloads_messages_or_both() -> None:
    got: list[Any] = []

    def payloads(orders: list[Order]) -> None:
        got.append(orders)

    def messages(messages: list[Message]) -> None:
        got.append([message.value for message in messages])

    def both(batch: Batch, orders: list[int]) -> None:
        got.append((len(batch), orders))

    for function, one in ((payloads, b'{"id": 1}'), (messages, b"x"), (both, b"3")):
        with Setting(function, batch=10) as setting:
            setting.crew.give(hand(values(one, one)))
            setting.log.wait(2)

    assert got == [[Order(1), Order(1)], [b"x", b"x"], (2, [3, 3])]


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b: None, lambda a, message, c: None, lambda a, *, b: None, "no function"]
)
def test_a_handler_that_cannot_be_called_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError):
        call_of(function, batch=None)


def test_a_batch_handler_with_the_type_of_one_message_is_refused() -> None:
    def handle(order: Order) -> None: ...

    with pytest.raises(UsageError, match="many messages"):
        call_of(handle, batch=5)


# What becomes of messages


def test_a_handler_that_buries_in_our_own_words_is_told_apart_from_what_was_lost() -> None:
    with Setting(lambda message: Bury("lost too often")) as setting:
        setting.crew.give(hand(values(b"a")))
        setting.log.wait(1)

    ((_, outcome),) = setting.log.told
    assert (outcome.kind, outcome.reason) == ("buried", "asked for: lost too often")


def test_returning_acks_raising_retries_and_the_last_failure_buries() -> None:
    def handle(message: Message) -> object:
        match message.value:
            case b"fail":
                raise ValueError("no")
            case b"retry":
                return Retry("7s")
            case b"bury":
                raise Bury("why not")
            case _:
                return "anything"

    with Setting(handle) as setting:
        setting.crew.give(hand(values(b"ok", b"fail", b"retry", b"bury")))
        setting.log.wait(4)
        setting.crew.give(hand(values(b"fail", b"retry", start=4), cell=Cell(Status.LEASED, charges=2)))
        setting.log.wait(6)
    told = {part[0]: outcome for part, outcome in setting.log.told}

    assert told[0] == ACKED
    assert (told[1].kind, told[1].delay_ms, told[1].counts) == ("released", 1_000, True)
    assert (told[2].kind, told[2].delay_ms, told[2].counts) == ("released", 7_000, True)
    assert (told[3].kind, told[3].reason) == ("buried", "why not")
    assert (told[4].kind, told[4].reason) == ("buried", "attempts used up")
    assert told[5].kind == "buried"


def test_acks_are_told_as_ranges_with_the_invisible_offsets_before_each() -> None:
    read = row([Record(2), Record(5), Record(6)], 0)
    with Setting(lambda message: None) as setting:
        setting.crew.give(hand(read))
        setting.log.wait(7)

    assert setting.log.kinds() == dict.fromkeys(range(7), "acked")


def test_a_payload_that_cannot_be_read_is_buried_and_the_handler_never_sees_it() -> None:
    got: list[int] = []

    def handle(number: int) -> None:
        got.append(number)

    with Setting(handle) as setting:
        setting.crew.give(hand(values(b"1", b"x", b"3")))
        setting.log.wait(3)

    assert got == [1, 3]
    assert [outcome.reason for _, outcome in setting.log.told if outcome.kind == "buried"] == ["undecodable"]


def test_messages_of_a_lost_hand_are_not_begun() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.offset)
        gate.wait(60)

    given = hand(values(b"", b"", b""))
    with Setting(handle) as setting:
        setting.crew.give(given)
        eventually(lambda: bool(begun))
        given.is_lost = True
        gate.set()
        later = hand(values(b"", start=3))
        setting.crew.give(later)
        eventually(lambda: 3 in begun)

    assert begun == [0, 3]


def test_what_is_not_begun_when_it_stops_is_given_back() -> None:
    begun, gate = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        gate.wait(60)

    with Setting(handle) as setting:
        setting.crew.give(hand(values(b"", b"", b"")))
        assert begun.wait(60)
        setting.crew.stop_beginning()
        assert setting.log.told == [((1, 2), GIVEN_BACK), ((2, 3), GIVEN_BACK)]
        gate.set()
        setting.log.wait(3)

    assert setting.log.kinds()[0] == "acked"


def test_many_threads_work_at_once() -> None:
    meeting = threading.Barrier(8, timeout=60)
    with Setting(lambda message: meeting.wait(), concurrency=8) as setting:
        setting.crew.give(hand(values(*[b""] * 16)))
        setting.log.wait(16)

    assert setting.log.kinds() == dict.fromkeys(range(16), "acked")


# Time limits


def test_who_takes_too_long_loses_the_message_and_its_place_goes_to_another() -> None:
    gate = threading.Event()
    lost: list[bool] = []

    def handle(message: Message) -> None:
        if message.value == b"hang":
            gate.wait(60)
            lost.append(message.lease_lost)

    with Setting(handle, time_limit_ms=500) as setting:
        setting.crew.give(hand(values(b"hang", b"")))
        eventually(lambda: setting.crew.look() is None and len(setting.log.kinds()) == 2)
        gate.set()
        eventually(lambda: bool(lost))

    assert setting.log.kinds() == {0: "released", 1: "acked"}
    assert lost == [True]


def test_an_async_handler_that_takes_too_long_is_cancelled() -> None:
    async def handle(message: Message) -> None:
        if message.value == b"hang":
            await asyncio.Event().wait()

    with Setting(handle, time_limit_ms=500) as setting:
        setting.crew.give(hand(values(b"hang", b"")))
        eventually(lambda: setting.crew.look() is None and len(setting.log.kinds()) == 2)

    assert setting.log.kinds() == {0: "released", 1: "acked"}


def test_async_handlers_wait_for_each_other_on_one_loop() -> None:
    async def handle(message: Message) -> None:
        arrived.append(message.offset)
        if len(arrived) == 20:
            all_there.set()
        await all_there.wait()

    arrived, all_there = list[int](), asyncio.Event()
    with Setting(handle, concurrency=20) as setting:
        setting.crew.give(hand(values(*[b""] * 20)))
        setting.log.wait(20)

    assert setting.log.kinds() == dict.fromkeys(range(20), "acked")


# Order


def test_a_chain_is_worked_off_in_order_and_a_failure_gives_its_successors_back() -> None:
    seen: list[int] = []
    firsts = threading.Barrier(2, timeout=60)

    def handle(message: Message) -> None:
        if message.offset < 2:
            # Both keys are worked on at once; whoever does not wait for them has the time to show it.
            firsts.wait()
        seen.append(message.offset)
        if message.offset == 2:
            raise ValueError

    with Setting(handle, concurrency=4, is_ordered=True) as setting:
        setting.crew.give(hand(stretch(["a", "b", "a", "b", "a", "a"])))
        setting.log.wait(6)

    assert [offset for offset in seen if offset % 2 == 0] == [0, 2]
    assert [offset for offset in seen if offset in (1, 3)] == [1, 3]
    assert setting.log.kinds() == {0: "acked", 1: "acked", 2: "released", 3: "acked", 4: "released", 5: "released"}
    assert [outcome.counts for part, outcome in setting.log.told if part[0] in (2, 4, 5)].count(True) == 1


def test_one_that_is_buried_does_not_hold_its_successors() -> None:
    def handle(message: Message) -> Bury | None:
        return Bury("no") if message.offset == 0 else None

    with Setting(handle, is_ordered=True) as setting:
        setting.crew.give(hand(stretch(["a", "a"])))
        setting.log.wait(2)

    assert setting.log.kinds() == {0: "buried", 1: "acked"}


# Batches


def test_a_batch_is_filled_from_several_hands_and_bounded() -> None:
    sizes: list[int] = []
    begun, gate = threading.Event(), threading.Event()

    def handle(messages: Batch) -> None:
        begun.set()
        gate.wait(60)
        sizes.append(len(messages))

    with Setting(handle, batch=4) as setting:
        setting.crew.give(hand(values(b"")))
        assert begun.wait(60)
        setting.crew.give(hand(values(b"", b"", b"", start=1)))
        setting.crew.give(hand(values(b"", b"", b"", start=4)))
        gate.set()
        setting.log.wait(7)

    assert sizes == [1, 4, 2]


def test_a_batch_that_fails_is_released_uncharged_and_one_alone_is_charged() -> None:
    def handle(messages: Batch) -> None:
        raise ValueError

    with Setting(handle, batch=4) as setting:
        setting.crew.give(hand(values(b"", b"", b"", b"")))
        setting.log.wait(4)
        setting.crew.give(hand(values(b"", b"", b"", b"")))
        eventually(lambda: len(setting.log.told) == 3)
        setting.crew.give(hand(values(b"", start=0)))
        eventually(lambda: len(setting.log.told) == 4)

    assert [(part, outcome.counts) for part, outcome in setting.log.told] == [
        ((0, 4), False),
        ((0, 2), False),
        ((2, 4), False),
        ((0, 1), True),
    ]


def test_those_that_cannot_be_read_are_taken_out_of_a_batch() -> None:
    def handle(numbers: list[int]) -> None: ...

    with Setting(handle, batch=4) as setting:
        setting.crew.give(hand(values(b"1", b"x", b"3")))
        setting.log.wait(3)

    assert setting.log.kinds() == {0: "released", 1: "buried", 2: "released"}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ([None, Retry("1s"), Bury("b")], [None]),
        (("done", Retry("1s"), Bury("b")), "abc"),
        ({2: Bury("b"), 1: Retry("1s")}, {3: Retry("1s")}),
        ({0: None, 1: Retry("1s"), 2: Bury("b")}, {"1": Retry("1s")}),
        ({0: True, 1: Retry("1s"), 2: Bury("b")}, {-1: Retry("1s")}),
    ],
)
def test_an_answer_for_each_message_counts_and_one_that_fits_no_message_is_a_failure(good: Any, bad: Any) -> None:
    answers = [good, bad]

    def handle(messages: Batch) -> Any:
        return answers.pop(0)

    with Setting(handle, batch=4) as setting:
        setting.crew.give(hand(values(b"", b"", b"")))
        setting.log.wait(3)
        setting.crew.give(hand(values(b"", b"", b"", start=3)))
        setting.log.wait(6)

    assert setting.log.kinds() == {
        0: "acked",
        1: "released",
        2: "buried",
        **dict.fromkeys((3, 4, 5), "released"),
    }


def test_an_empty_mapping_acks_all() -> None:
    with Setting(lambda messages: {}, batch=4) as setting:
        setting.crew.give(hand(values(b"", b"")))
        setting.log.wait(2)

    assert setting.log.kinds() == {0: "acked", 1: "acked"}


def test_what_failed_of_messages_here_and_there_is_told_apart_from_what_is_acked() -> None:
    seen: list[int] = []

    def handle(messages: Batch) -> dict[int, Retry | Bury]:
        seen.extend(message.offset for message in messages)
        chosen: dict[int, Retry | Bury] = {4: Bury("b"), 7: Retry("1s"), 8: Retry("1s"), 13: Retry("2s")}
        return {number: chosen[each.offset] for number, each in enumerate(messages) if each.offset in chosen}

    several = row([Record(n) for n in range(10)], 0).within([(1, 2), (4, 6), (7, 9)])
    sparse = row([Record(13), Record(15)], 11)
    assert several is not None
    with Setting(handle, batch=100) as setting:
        setting.crew.give(hand(several, sparse))
        setting.log.wait(10)

    assert seen == [1, 4, 5, 7, 8, 13, 15]
    assert setting.log.kinds() == {
        **dict.fromkeys((1, 5, 14, 15), "acked"),
        **dict.fromkeys((7, 8, 11, 12, 13), "released"),
        4: "buried",
    }
    assert {outcome.delay_ms: part for part, outcome in setting.log.told if outcome.kind == "released"}[2_000] == (
        11,
        14,
    )


def test_with_an_order_the_batches_of_one_lease_follow_each_other_and_a_failure_ends_that() -> None:
    seen: list[list[int]] = []

    def handle(messages: Batch) -> None:
        seen.append([message.offset for message in messages])
        time.sleep(0.005)  # whoever does not wait has the time to show it
        if 2 in seen[-1]:
            raise ValueError

    with Setting(handle, batch=2, concurrency=4, is_ordered=True) as setting:
        setting.crew.give(hand(stretch(["a"] * 8)))
        setting.log.wait(8)

    assert seen == [[0, 1], [2, 3]]
    assert list(setting.log.kinds().values()).count("released") == 6


def test_a_pile_is_counted_while_nobody_changes_it() -> None:
    setting = Setting(lambda messages: None, batch=2, is_ordered=True)
    setting.crew.close()
    pile = setting.pile
    assert isinstance(pile, BatchPile)

    class Counted(deque[Any]):
        def __len__(self) -> int:
            # Somebody gives while the lines are gone through: he has to wait.
            giver.start()
            giver.join(0.1)
            return super().__len__()

    giver = threading.Thread(target=lambda: pile.give(hand(values(b"second"))))
    pile._lines.append(Counted([(hand(values(b"first")), None, 2)]))

    assert len(pile) == 1
    giver.join()
    assert len(pile._lines) == 2


async def _async_handler(payload: bytes) -> None: ...


@pytest.mark.parametrize("function", [lambda payload: None, _async_handler])
def test_who_drives_a_crew_hears_of_a_bug_that_ended_a_seat(function: Callable[..., Any]) -> None:
    with Setting(function) as setting:

        def broken(*_: object) -> None:
            raise LookupError("a bug of ours")

        assert isinstance(setting.pile, MessagePile)
        setting.pile._begin = broken  # type: ignore[method-assign]
        setting.crew.give(hand(values(b"x")))

        def has_raised() -> bool:
            try:
                setting.crew.look()
            except LookupError:
                return True
            return False

        eventually(has_raised)


def test_halves_are_forgotten_when_they_are_done() -> None:
    halving, read = Halving(10), values(*[b""] * 8)
    halving.failed(0, [(0, 8)], 8)
    assert [(part.ranges, limit) for part, limit in halving.parts(0, read)] == [(((0, 8),), 4)]
    halving.failed(0, [(0, 1)], 1)
    halving.ended(0, [(4, 8)])

    found = [(*part.ranges, limit) for part, limit in halving.parts(0, read)]
    assert found == [((0, 1), 1), ((1, 4), 4), ((4, 8), 10)]
    halving.ended(0, [(0, 8)])
    assert [limit for _, limit in halving.parts(0, read)] == [10]


# The message itself


def test_a_message_tells_what_was_sent_and_which_attempt_it_is() -> None:
    got: list[Message] = []
    record = Record(3, b"k", b"{}", [("penstock-id", b"order-1"), ("content-type", b"application/json")])
    cell = Cell(Status.LEASED, charges=1, progress=b"page 2")
    with Setting(lambda message: got.append(message)) as setting:
        setting.crew.give(hand(row([record], 1), cell=cell, epoch=99))
        setting.log.wait(3)
    [message] = got

    assert (message.id, message.key, message.payload, message.value) == ("order-1", b"k", {}, b"{}")
    assert (message.topic, message.partition, message.offset, message.timestamp_ms) == ("orders", 0, 3, 1_003)
    assert (message.attempt, message.token, message.resume_token) == (2, 99, b"page 2")
    assert not message.lease_lost
    with pytest.raises(UsageError, match="too long"):
        message.progress(b"x" * 1_025)
    with pytest.raises(UsageError, match="give bytes"):
        message.progress("page 2")  # type: ignore[arg-type]


def test_a_message_without_an_id_is_called_after_its_place() -> None:
    got: list[str] = []
    with Setting(lambda message: got.append(message.id)) as setting:
        setting.crew.give(hand(values(b"")))
        setting.log.wait(1)

    assert got == ["orders/0/0"]
