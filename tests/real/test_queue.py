"""The queue on a real broker: single acks, redelivery, dead letters, order, every kind of handler."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from queue_consumers import PARTITIONS, Consumer, lag, letters, queue_settings, queue_topic, working
from real_kafka import append, eventually, recorded_events

import penstock
from penstock import Batch, Bury, Message, Outgoing, Retry
from penstock.broker import Embedded
from penstock.errors import UsageError
from penstock.settings import Settings
from penstock.values import TopicPartition


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return queue_settings(penstock_broker)


@pytest.fixture
def name(settings: Settings) -> Iterator[str]:
    with queue_topic(settings) as name:
        yield name


# Sharing and accounting


def test_two_consumers_share_five_hundred_messages_with_nothing_twice(settings: Settings, name: str) -> None:
    a, b = Consumer(settings, name, concurrency=4), Consumer(settings, name, concurrency=4)
    with working(a, b):
        eventually(lambda: len(a.partitions) == len(b.partitions) == PARTITIONS // 2)
        a.queue.send_many(range(500))
        eventually(lambda: len(a.seen) + len(b.seen) >= 500)

    assert Counter(a.seen + b.seen) == Counter(range(500))
    assert a.seen
    assert b.seen
    assert lag(settings, name) == 0


def test_a_released_message_comes_back_and_an_acked_one_never_does_also_after_a_restart_of_everything(
    settings: Settings, name: str
) -> None:
    first = Consumer(settings, name, do=lambda message: Retry("10ms") if message.attempt == 1 else None)
    with working(first):
        first.queue.send_many(range(40))
        eventually(lambda: len(first.seen) == 80)
    second = Consumer(settings, name)
    with working(second):
        second.queue.send(1_000)
        eventually(lambda: second.seen)

    assert Counter(first.seen) == Counter(dict.fromkeys(range(40), 2))
    assert second.seen == [1_000]


def test_with_limit_three_a_failing_message_is_seen_three_times_and_then_is_dead_with_full_context(
    settings: Settings, name: str
) -> None:
    def fail(message: Message) -> None:
        if message.payload == 7:
            raise KeyError("no such customer")

    consumer = Consumer(settings, name, do=fail, attempts_max=3)
    with recorded_events() as events, working(consumer):
        consumer.queue.send_many(range(6))
        consumer.queue.send(7, key="customer-7", id="order-7", headers={"colour": "red"})
        eventually(lambda: any(type(event).__name__ == "MessagesBuried" for event in events))
    later = Consumer(settings, name)
    with working(later):
        later.queue.send(8)
        eventually(lambda: later.seen)

    assert Counter(consumer.seen) == Counter(range(6)) + Counter({7: 3})
    assert later.seen == [8]
    [(value, headers)] = letters(settings, name)
    assert value == b"7"
    assert headers["penstock-id"] == b"order-7"
    assert headers["colour"] == b"red"
    assert headers["penstock-origin-key"] == b"customer-7"
    assert headers["penstock-origin-topic"] == name.encode()
    assert headers["penstock-attempts"] == b"3"
    assert headers["penstock-error-class"] == b"builtins.KeyError"
    assert "no such customer" in (headers["penstock-error"] or b"").decode()
    assert "test_queue.py" in (headers["penstock-error"] or b"").decode()
    assert headers["penstock-reason"] == b"attempts used up"
    assert lag(settings, name) == 0


def test_what_cannot_be_read_and_what_is_buried_by_hand_is_dead_at_once(settings: Settings, name: str) -> None:
    consumer = Consumer(settings, name, do=lambda message: Bury("not ours") if message.payload == 2 else None)
    with working(consumer):
        consumer.queue.send_many([1, 2, "no number"])
        eventually(lambda: lag(settings, name) == 0 and len(letters(settings, name)) == 2)

    assert sorted(consumer.seen) == [1, 2]
    reasons = {value: headers["penstock-reason"] for value, headers in letters(settings, name)}
    assert reasons == {b"2": b"not ours", b"no number": b"undecodable"}


def test_the_dead_letter_of_a_foreign_message_has_the_id_that_its_handler_saw(settings: Settings, name: str) -> None:
    seen: list[str] = []
    consumer = Consumer(settings, name, do=lambda message: seen.append(message.id) or Bury())
    with working(consumer):
        append(settings.kafka, TopicPartition(name, 1), b"1", b"2")
        eventually(lambda: lag(settings, name) == 0)

    assert sorted(seen) == [f"{name}/1/0", f"{name}/1/1"]
    assert sorted(str(headers["penstock-id"], "utf-8") for _, headers in letters(settings, name)) == sorted(seen)


# Times


def test_a_delayed_message_and_a_delayed_retry_wait_and_hold_nothing_up(settings: Settings, name: str) -> None:
    times: dict[str, float] = {}

    def note(message: Message) -> Retry | None:
        times.setdefault(f"{message.payload} {message.attempt}", time.monotonic())
        return Retry("1s") if message.payload == 2 and message.attempt == 1 else None

    consumer = Consumer(settings, name, do=note, concurrency=1)
    consumer.queue.send(5, ttl="1ms")  # long over when somebody comes to work
    with working(consumer):
        began = time.monotonic()
        consumer.queue.send(1, delay="2s")
        consumer.queue.send_many([2, 3, 4])
        eventually(lambda: "1 1" in times and "2 2" in times)
        eventually(lambda: lag(settings, name) == 0)

    assert times["1 1"] - began >= 1.9
    assert times["2 2"] - times["2 1"] >= 0.9
    assert "5 1" not in times
    assert max(times["3 1"], times["4 1"]) < times["1 1"]


def test_a_handler_that_takes_too_long_loses_the_message_and_is_told(settings: Settings, name: str) -> None:
    told = threading.Event()
    attempts: list[int] = []

    def hang(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            eventually(lambda: message.lease_lost)
            told.set()

    consumer = Consumer(settings, name, do=hang, time_limit="1s")
    with working(consumer):
        consumer.queue.send(1)
        eventually(lambda: attempts == [1, 2])
        assert told.wait(60)
        eventually(lambda: lag(settings, name) == 0)

    assert attempts == [1, 2]


def test_a_message_that_asks_for_more_time_gets_it(settings: Settings, name: str) -> None:
    lost: list[bool] = []
    late: list[int] = []

    def work(message: Message) -> None:
        if message.payload == 2:  # which asks for nothing
            eventually(lambda: message.lease_lost)
            late.append(message.attempt)
            return
        message.extend("2m")
        before = len(late)
        eventually(lambda: len(late) >= before + 2)  # the later one of them began after us
        lost.append(message.lease_lost)

    consumer = Consumer(settings, name, do=work, time_limit="500ms", concurrency=4)
    with working(consumer):
        consumer.queue.send_many([1, 2])
        eventually(lambda: lost)

    assert lost == [False]
    assert consumer.seen.count(1) == 1


def test_the_next_attempt_gets_the_resume_token_of_the_last(settings: Settings, name: str) -> None:
    tokens: list[bytes | None] = []

    def work(message: Message) -> None:
        tokens.append(message.resume_token)
        if message.attempt == 1:
            message.progress(b"page 3")
            raise ConnectionError

    consumer = Consumer(settings, name, do=work)
    with working(consumer):
        consumer.queue.send(1)
        eventually(lambda: len(tokens) == 2)

    assert tokens == [None, b"page 3"]


# Kinds of handlers


def test_a_batch_that_fails_comes_again_in_halves_until_the_bad_one_is_alone(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s", backoff="20ms", backoff_max="20ms", attempts_max=2)
    sizes: list[int] = []
    done: Counter[int] = Counter()

    @queue.handler(batch=64)
    def handle(numbers: list[int], batch: Batch) -> None:
        sizes.append(len(batch))
        if 13 in numbers:
            raise ValueError("thirteen")
        done.update(numbers)

    with app:
        queue.send_many([Outgoing(number, key="same") for number in range(64)])
        with app.working():
            eventually(lambda: len(done) == 63)
            eventually(lambda: lag(settings, name) == 0)

    assert done == Counter({number: 1 for number in range(64) if number != 13})
    assert [value for value, _ in letters(settings, name)] == [b"13"]
    assert sizes.count(1) >= 2


def test_a_batch_handler_answers_for_each_message(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s")
    seen: Counter[int] = Counter()

    @queue.handler(batch=10)
    def handle(messages: Batch) -> list[Retry | Bury | None]:
        seen.update(message.payload for message in messages)
        return [_answer(message) for message in messages]

    def _answer(message: Message) -> Retry | Bury | None:
        if message.payload == 3:
            return Bury("three")
        return Retry("10ms") if message.payload == 4 and message.attempt == 1 else None

    with app, app.working():
        queue.send_many(range(20))
        eventually(lambda: seen[4] == 2 and lag(settings, name) == 0)

    assert seen == Counter(range(20)) + Counter([4])
    assert [value for value, _ in letters(settings, name)] == [b"3"]


def test_one_of_a_batch_that_comes_again_is_the_message_that_it_was(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s")
    seen: list[tuple[object, ...]] = []

    @queue.handler(batch=20)
    def handle(messages: Batch) -> dict[int, Retry]:
        one = next((number for number, value in enumerate(messages.values()) if value == b"again"), None)
        if one is None:
            return {}
        it = messages[one]
        place = it.topic, it.partition, it.offset, it.timestamp_ms
        seen.append((it.attempt, it.id, it.key, it.value, it.headers, *place))
        return {one: Retry("10ms")} if it.attempt < 3 else {}

    with app:
        queue.send_many([Outgoing(b"other", key="k") for _ in range(10)])
        queue.send(b"again", key="k", id="one", headers={"colour": "red"})
        queue.send_many([Outgoing(b"other", key="k") for _ in range(10)])
        with app.working():
            eventually(lambda: len(seen) == 3 and lag(settings, name) == 0)

    assert [attempt for attempt, *_ in seen] == [1, 2, 3]
    ((identity, key, value, *_),) = {repr(rest): rest for _, *rest in seen}.values()
    assert (identity, key, value) == ("one", b"k", b"again")


def test_async_handlers_run_at_the_same_time_on_one_loop(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s", backoff="50ms", time_limit="60s")
    together, many = 0, asyncio.Event()
    seen: Counter[int] = Counter()

    @queue.handler(concurrency=50)
    async def handle(number: int, message: Message) -> None:
        nonlocal together
        together += 1
        if together > 10:
            many.set()
        await many.wait()
        together -= 1
        seen[number] += 1
        if number == 5 and message.attempt == 1:
            raise ValueError

    with app, app.working():
        queue.send_many(range(100))
        eventually(lambda: sum(seen.values()) == 101)

    assert seen == Counter(range(100)) + Counter([5])


def test_pulled_messages_are_settled_by_their_receiver(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s", backoff="50ms", attempts_max=2)
    seen: Counter[int] = Counter()
    with app:
        queue.send_many(range(6))
        for message in queue.receive(int, timeout="3s"):
            seen[message.payload] += 1
            with message:
                match message.payload, seen[message.payload]:
                    case 1, 1:
                        message.release()
                    case 2, 1:
                        message.retry("10ms")
                    case 3, _:
                        message.bury("three")
                    case 4, _:
                        raise ValueError("four")
            with pytest.raises(UsageError):
                message.ack()

    assert seen == Counter({0: 1, 1: 2, 2: 2, 3: 1, 4: 2, 5: 1})
    assert {value for value, _ in letters(settings, name)} == {b"3", b"4"}
    assert lag(settings, name) == 0


def test_the_time_without_a_message_counts_from_when_there_could_be_one(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = penstock.App("shop", settings=settings)
    queue, single = app.queue(name, lease="3s"), app.queue(f"{name}-single", lease="3s", partitions=1)
    with app:
        queue.send(1)
        seen = []
        for message in queue.receive(int, timeout="200ms"):  # it takes longer to get the partitions
            with message:
                seen.append(message.payload)
        assert seen == [1]
        monkeypatch.setattr("penstock.queue.receiving.PARTITIONS_WITHIN_S", 1.0)
        with single.receive(int) as holder:
            eventually(lambda: holder.partitions)
            assert list(single.receive(int, timeout="200ms")) == [], "who gets no partition ends all the same"


def test_what_was_pulled_and_not_settled_comes_again(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s")
    with app:
        queue.send(1)
        with queue.receive(int, grace="100ms") as messages:
            first = next(iter(messages))
        second = next(iter(queue.receive(int, grace="100ms")))

    assert (first.payload, second.payload) == (1, 1)
    assert second.attempt == 1
    assert second.token > first.token


# Order


def test_messages_of_one_key_are_handled_in_order_also_when_one_is_retried(settings: Settings, name: str) -> None:
    order: dict[bytes, list[int]] = {}
    running: Counter[bytes] = Counter()
    overlaps: list[bytes] = []

    def work(message: Message) -> None:
        key = message.key or b""
        running[key] += 1
        if running[key] > 1:
            overlaps.append(key)
        time.sleep(0.001)  # the others get a chance to overlap
        running[key] -= 1
        if message.payload % 17 == 3 and message.attempt == 1:
            raise ValueError
        order.setdefault(key, []).append(message.payload)

    consumer = Consumer(settings, name, do=work, order="key", concurrency=8, in_hand_max=60)
    with working(consumer):
        consumer.queue.send_many([Outgoing(number, key=f"k{number % 10}") for number in range(300)])
        eventually(lambda: sum(map(len, order.values())) >= 300, within_s=60)

    assert overlaps == []
    assert {key: numbers for key, numbers in order.items() if numbers != sorted(numbers)} == {}
    assert sum(map(len, order.values())) == 300


def test_a_busy_key_leaves_room_for_the_others(settings: Settings, name: str) -> None:
    go_on = threading.Event()

    def work(message: Message) -> None:
        if message.key == b"busy":
            go_on.wait(120)

    consumer = Consumer(
        settings, name, do=work, order="key", in_hand_max=50, in_hand_max_per_key=10, concurrency=2, lease="10s"
    )
    with working(consumer):
        consumer.queue.send_many([Outgoing(number, key="busy") for number in range(400)])
        eventually(lambda: consumer.seen)
        consumer.queue.send_many([Outgoing(number, key=f"k{number}") for number in range(1_000, 1_100)])
        eventually(lambda: len(consumer.seen) == 101, within_s=60)
        assert [number for number in consumer.seen if number < 1_000] == [0]
        go_on.set()
        eventually(lambda: lag(settings, name) == 0, within_s=60)

    assert [number for number in consumer.seen if number < 1_000] == list(range(400))


def test_a_new_owner_waits_for_what_a_former_one_left_waiting(settings: Settings, name: str) -> None:
    first = Consumer(settings, name, do=lambda message: Retry("3s") if message.payload == 0 else None, order="key")
    with working(first):
        first.queue.send(0, key="a")
        eventually(lambda: first.seen == [0])
        first.queue.send_many([Outgoing(number, key="a") for number in (1, 2)])
        first.queue.send(9, key="b")
        eventually(lambda: 9 in first.seen)
    second = Consumer(settings, name, order="key")
    with working(second):
        eventually(lambda: len(second.seen) == 3)

    assert sorted(first.seen) == [0, 9]
    assert second.seen == [0, 1, 2]


# At most once


def test_at_most_once_a_failure_loses_the_message_and_nothing_comes_twice(settings: Settings, name: str) -> None:
    def fail(message: Message) -> None:
        if message.payload % 10 == 3:
            raise ValueError

    consumer = Consumer(settings, name, do=fail, delivery="at_most_once", concurrency=4)
    with recorded_events() as events, working(consumer):
        consumer.queue.send_many(range(100))
        eventually(lambda: len(consumer.seen) >= 100)
    again = Consumer(settings, name, delivery="at_most_once")
    with working(again):
        again.queue.send(1_000)
        eventually(lambda: again.seen)

    assert Counter(consumer.seen) == Counter(range(100))
    assert again.seen == [1_000]
    assert sum(type(event).__name__ == "MessageFailed" for event in events) == 10
    assert lag(settings, name) == 0
