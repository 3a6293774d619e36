"""Two threads at one seat: each test makes one of them come between two steps of the other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from queue_records import hand, stretch, values
from real_kafka import eventually, recorded_events
from test_handling import Log, Setting

from penstock.errors import BrokerUnavailable, InvariantBroken
from penstock.observe.events import MessageOverTime
from penstock.queue.batch_pile import BatchPile
from penstock.queue.hand import Hand
from penstock.queue.message import Batch, Message
from penstock.queue.payload import decoder
from penstock.queue.pile import Manner, MessagePile, Seat
from penstock.queue.receiving import PullPile, Receiving
from penstock.queue.retry import RetryRules
from penstock.values import duration


class Bench:
    """A pile and one seat, worked by the test itself; whatever is worked on is over time at once."""

    def __init__(self, kind: Callable[..., Any], *, is_ordered: bool = True, **more: Any) -> None:
        self.log = Log()
        manner = Manner(
            queue="orders",
            rules=RetryRules(attempts_max=3),
            decode=decoder(Any),
            chance=lambda: 0.0,
            time_limit_ms=0,
            is_ordered=is_ordered,
        )
        self.pile: Any = kind(manner, tell=self.log.tell, is_good=lambda _: True, note_progress=None, **more)
        self.seat: Seat[Any] = Seat(self.pile.tell, self.pile.times.note)

    def told(self, *offsets: int) -> list[str]:
        kinds = self.log.kinds()
        return [kinds.get(offset, "nothing") for offset in offsets]


# Over time, or not


def test_a_handler_that_blocks_its_loop_over_time_ends_neither_the_crew_nor_the_next_message() -> None:
    begun, gate = threading.Event(), threading.Event()

    async def handle(message: Message) -> None:
        if message.value == b"block":
            begun.set()
            gate.wait(60)
        else:
            await asyncio.sleep(0)

    for given in ([b"block"], [b"block", b"innocent"]):
        begun.clear()
        gate.clear()
        with Setting(handle, time_limit_ms=0) as setting:
            setting.crew.give(hand(values(*given)))
            assert begun.wait(60)
            setting.crew.look()
            gate.set()
            setting.log.wait(len(given))
            setting.crew.give(hand(values(b"later", start=len(given))))
            setting.log.wait(len(given) + 1)

        assert list(setting.log.kinds().values()) == ["released", *["acked"] * len(given)]


async def _async_handler(payload: bytes) -> None: ...


@pytest.mark.parametrize("function", [lambda payload: None, _async_handler])
def test_who_drives_a_crew_hears_even_of_what_is_no_exception(function: Callable[..., Any]) -> None:
    def broken(*_: object) -> None:
        raise asyncio.CancelledError

    def has_raised() -> bool:
        try:
            setting.crew.look()
        except InvariantBroken as bug:
            return isinstance(bug.__cause__, asyncio.CancelledError)
        return False

    with Setting(function) as setting:
        setting.pile._begin = broken  # type: ignore[attr-defined]
        setting.crew.give(hand(values(b"x")))
        eventually(has_raised)


def test_the_limit_of_a_batch_is_looked_up_while_its_handler_makes_messages() -> None:
    bench = Bench(BatchPile, batch_max=3)
    bench.pile.give(hand(values(b"", b"", b"")))
    batch = bench.pile.take(bench.seat)

    class Looked:
        @property
        def _deadline_ms(self) -> int:
            _ = batch[2]
            return 7

    batch._made = {0: Looked(), 1: Looked()}

    assert bench.pile.deadline_ms(bench.seat, batch) == bench.seat.began_ms


def test_a_batch_that_ends_just_before_it_is_over_time_costs_the_seat_nothing() -> None:
    begun = [threading.Event() for _ in range(3)]
    gates = [threading.Event() for _ in range(3)]

    def handle(messages: Batch) -> None:
        begun[messages[0].offset].set()
        gates[messages[0].offset].wait(60)

    def deadline_ms(seat: Seat[Any], piece: Batch) -> int:
        gates[0].set()
        assert begun[1].wait(60)
        return 0

    with Setting(handle, batch=1, is_ordered=True, time_limit_ms=60_000) as setting, recorded_events() as events:
        setting.pile.deadline_ms = deadline_ms  # type: ignore[method-assign]
        setting.crew.give(hand(stretch(["a"] * 3)))
        assert begun[0].wait(60)
        setting.crew.look()
        gates[1].set()
        gates[2].set()
        setting.log.wait(3)

    assert set(setting.log.kinds().values()) == {"acked"}
    assert not [event for event in events if isinstance(event, MessageOverTime)]


def test_a_handler_that_returns_just_before_it_is_given_up_keeps_its_seat() -> None:
    begun, gates = threading.Semaphore(0), [threading.Event() for _ in range(3)]

    def handle(messages: Batch) -> None:
        begun.release()
        gates[messages[0].offset].wait(60)

    def returns_first(seat: Seat[Any]) -> bool:
        gates[0].set()
        assert begun.acquire(timeout=60)
        return give_up(seat)

    with Setting(handle, batch=1, is_ordered=True, time_limit_ms=0) as setting:
        give_up = setting.pile.give_up
        setting.pile.give_up = returns_first  # type: ignore[method-assign]
        setting.crew.give(hand(stretch(["a"])))
        setting.crew.give(hand(stretch(["b"] * 2, start=1)))
        assert begun.acquire(timeout=60)
        setting.crew.look()
        assert [seat.is_given_up for seat in setting.crew._seats] == [False]
        for gate in gates:
            gate.set()
        setting.log.wait(3)

    assert setting.log.kinds() == {0: "released", 1: "acked", 2: "acked"}


def test_nobody_goes_on_with_the_line_of_a_batch_that_is_over_time() -> None:
    bench = Bench(BatchPile, batch_max=1)
    bench.pile.give(hand(stretch(["a"] * 3)))
    first = bench.pile.take(bench.seat)
    taken: list[Batch | None] = []

    def handler_returns(*_: object) -> None:
        if not taken:
            taken.append(None)
            bench.pile.done(bench.seat, first, None)
            taken.append(bench.pile.take(bench.seat))

    bench.seat.note = bench.pile.times.note = handler_returns

    assert bench.pile.over_time(bench.seat, first)
    assert taken == [None, None]
    assert bench.told(0, 1, 2) == ["released"] * 3


def test_a_message_that_has_ended_is_not_over_time_and_its_successor_keeps_its_chain() -> None:
    bench = Bench(MessagePile)
    bench.pile.give(hand(stretch(["a"] * 3)))
    first = bench.pile.take(bench.seat)
    bench.pile.done(bench.seat, first, None)
    second = bench.pile.take(bench.seat)

    assert not bench.pile.over_time(bench.seat, first)

    bench.pile.done(bench.seat, second, None)
    bench.pile.done(bench.seat, bench.pile.take(bench.seat), None)
    bench.seat.flush()
    assert bench.told(0, 1, 2) == ["acked"] * 3


def test_a_message_that_is_just_ending_is_not_over_time() -> None:
    bench = Bench(MessagePile)
    bench.pile.give(hand(stretch(["a"] * 2)))
    first, follow = bench.pile.take(bench.seat), bench.pile._follow

    def look_first(seat: Seat[Message], given: Hand) -> None:
        assert not bench.pile.over_time(seat, first)
        follow(seat, given)

    bench.pile._follow = look_first
    bench.pile.done(bench.seat, first, None)
    bench.seat.flush()

    assert bench.told(0, 1) == ["acked", "nothing"]
    assert bench.pile.take(bench.seat).offset == 1


def test_what_its_handler_says_of_a_message_over_time_does_not_count() -> None:
    bench = Bench(MessagePile)
    bench.pile.give(hand(stretch(["a"] * 2)))
    first = bench.pile.take(bench.seat)

    assert bench.pile.over_time(bench.seat, first)
    assert not bench.pile.over_time(bench.seat, first)
    assert bench.seat.late is first
    bench.pile.done(bench.seat, first, None)
    bench.seat.flush()

    assert bench.seat.late is None
    assert [(part, outcome.kind, outcome.counts) for part, outcome in bench.log.told] == [
        ((1, 2), "released", False),
        ((0, 1), "released", True),
    ]


def test_a_message_is_over_time_once_however_often_one_looks() -> None:
    begun, gate = threading.Semaphore(0), threading.Event()

    async def stubborn(message: Message) -> None:
        begun.release()
        while not gate.is_set():
            try:
                await asyncio.to_thread(gate.wait, 60)
            except asyncio.CancelledError:
                cancelled.append(message.offset)

    def stuck(message: Message) -> None:
        begun.release()
        gate.wait(60)

    cancelled: list[int] = []
    for function, count in ((stubborn, 1), (stuck, 2)):
        gate.clear()
        with Setting(function, time_limit_ms=0) as setting, recorded_events() as events:
            setting.crew.give(hand(values(*[b""] * count)))
            for _ in range(count):
                assert begun.acquire(timeout=60)
                for _ in range(3):
                    setting.crew.look()
            gate.set()
            setting.log.wait(count)

        assert len([event for event in events if isinstance(event, MessageOverTime)]) == count
    assert cancelled == [0]


def test_a_thread_that_is_stuck_is_replaced_as_soon_as_another_ends() -> None:
    begun, gates = threading.Semaphore(0), [threading.Event() for _ in range(3)]

    def handle(message: Message) -> None:
        begun.release()
        gates[message.offset].wait(60)

    with Setting(handle, time_limit_ms=0) as setting:
        setting.crew.give(hand(values(*[b""] * 3)))
        for _ in range(2):
            assert begun.acquire(timeout=60)
            setting.crew.look()
        gates[0].set()
        eventually(lambda: setting.crew.look() is None and begun.acquire(blocking=False))
        for gate in gates:
            gate.set()


# Piles


def test_as_many_are_woken_as_were_put_whatever_others_take_meanwhile() -> None:
    class Eager(deque[Any]):
        def append(self, item: Any) -> None:
            """Somebody takes it at once."""

        extend = append  # type: ignore[assignment]

    for is_ordered, keys in ((False, ["a", "a", "b"]), (True, ["a", "b", "c"])):
        pile = Bench(MessagePile, is_ordered=is_ordered).pile
        pile._todo = Eager()

        assert pile.give(hand(stretch(keys))) == 3


def test_what_follows_into_a_pile_that_was_just_emptied_is_given_back() -> None:
    bench = Bench(MessagePile)
    bench.pile.give(hand(stretch(["a"] * 3)))
    first = bench.pile.take(bench.seat)

    class Closed(deque[Any]):
        def appendleft(self, item: Any) -> None:
            bench.pile.is_closing = True
            bench.pile.empty()
            super().appendleft(item)

    bench.pile._todo = Closed()
    bench.pile.done(bench.seat, first, None)

    assert bench.told(1, 2) == ["released"] * 2


@contextmanager
def collecting(on_collect: Callable[[], object]) -> Iterator[None]:
    def start(phase: str, _: object) -> None:
        if phase == "start":
            on_collect()

    before = gc.get_threshold()
    gc.callbacks.append(start)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(start)


def test_messages_are_pulled_while_one_looks_at_those_that_are_out() -> None:
    bench = Bench(PullPile)
    resting: Seat[Message] = Seat(bench.pile.tell)
    bench.pile._out = dict.fromkeys(range(5_000), resting)

    with collecting(lambda: bench.pile._out.update({len(bench.pile._out): resting})):
        bench.pile.look()

    assert len(bench.pile._out) >= 5_000


def test_a_pulled_message_is_settled_by_its_receiver_or_over_time_never_both() -> None:
    bench = Bench(PullPile)
    bench.pile.give(hand(stretch(["a", "a", "b", "b"])))

    late = bench.pile.pull(0)
    bench.pile.look()
    late.ack()
    good = bench.pile.pull(0)
    good.ack()
    assert not bench.pile.over_time(good._seat, good)

    assert bench.told(0, 1, 2, 3) == ["released", "released", "acked", "nothing"]
    assert late.lease_lost
    assert not bench.pile._out


# Receiving


class FailingStation:
    """It says what it failed with at its very end, long after its pile was closed."""

    is_running = True
    failure: Exception | None = None
    joins = 0

    def start(self) -> None: ...

    def stop(self, grace: object) -> None: ...

    def join(self, within_s: float) -> bool:
        self.joins += 1
        self.failure = BrokerUnavailable("gone")
        return True


def test_an_iteration_raises_what_ended_its_station_and_waits_for_that_only() -> None:
    for is_stopped in (False, True):
        station, pile = FailingStation(), Bench(PullPile).pile
        pile.close()
        with Receiving(station, [pile], timeout=None, grace=duration("1s")) as messages:  # type: ignore[arg-type]
            if is_stopped:
                messages.stop()
                assert list(messages) == []
                assert not station.joins
            else:
                with pytest.raises(BrokerUnavailable):
                    list(messages)
