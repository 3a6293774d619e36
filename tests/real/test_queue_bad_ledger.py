"""Queues with bad topics: junk and the future in the ledger, wrong settings, topics that change, odd values."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from queue_accounts import fates
from queue_consumers import PARTITIONS, Consumer, lag, queue_settings, queue_topic, sender, working
from real_kafka import append, eventually, recorded_events

import penstock
from penstock import Message, Retry
from penstock.broker import Embedded
from penstock.claims.dead_letters import dead_letter_topic
from penstock.doctor.look import look
from penstock.doctor.mend import mend
from penstock.errors import GenesisMismatch, Halted, PenstockError, Refused
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.ledger.codec import encode, enveloped
from penstock.ledger.topics import ledger_topics, make_ledger
from penstock.observe.events import DataLost, PartitionHalted, RecordIgnored, subscribed
from penstock.observe.metrics import Metrics
from penstock.queue.names import ledger_topic
from penstock.queue.records import Acked, Buried, Dropped, QueueFounded, Released, Renewed, Taken
from penstock.settings import Settings
from penstock.values import TopicPartition

FORGED = (
    Acked(10**6, ((0, 10**6),)),
    Acked(0, ((7, 3),)),
    Buried(-5, ((0, 50),), "forged"),
    Released(3, ()),
    Renewed("nobody", (0, 1, 2)),
    Taken("nobody", 1, ((-5, 5),), 60_000),
    Taken("nobody", 1, ((0, 5),), 0),
    Dropped(((5, 5),), "forged"),
    QueueFounded(1, "another topic", 10**6, ("*",)),
)
JUNK: tuple[bytes | None, ...] = (
    None,
    b"",
    b"\x00" * 50,
    os.urandom(300),
    b"Ps\x01broken",
    encode(FORGED[0])[:-2],
    enveloped(b"\x91\xa7unknown"),
)


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return queue_settings(penstock_broker)


@pytest.fixture
def name(settings: Settings) -> Iterator[str]:
    with queue_topic(settings) as name:
        yield name


def ledger_of(settings: Settings, name: str) -> str:
    return ledger_topic(settings, topic=name, group="shop")


def write(settings: Settings, topic: str, partition: int, *values: bytes | None) -> None:
    with Writer(settings.kafka) as writer:
        for value in values:
            writer.send(topic, partition, value)
        assert writer.flush(30_000) == 0


def failure_of(consumer: Consumer) -> PenstockError:
    """Why it stopped by itself."""
    with consumer.app, consumer.app.working() as [station]:
        assert station.join(60), "it goes on"
    assert station.failure is not None
    return station.failure


# Junk


def test_junk_and_forged_records_in_the_ledger_change_nothing(settings: Settings, name: str) -> None:
    make_ledger(settings.kafka, ledger_of(settings, name), partitions=PARTITIONS)
    write(settings, ledger_of(settings, name), 0, *JUNK)
    consumer = Consumer(settings, name)
    with recorded_events() as events, working(consumer):
        consumer.queue.send_many(range(100))
        eventually(lambda: len(consumer.seen) >= 50)
        for partition in range(PARTITIONS):
            write(settings, ledger_of(settings, name), partition, *JUNK, *map(encode, FORGED))
        consumer.queue.send_many(range(100, 200))
        eventually(lambda: lag(settings, name) == 0 and len(consumer.seen) >= 200)
    again = Consumer(settings, name)
    with working(again):
        again.queue.send(1_000)
        eventually(lambda: again.seen)

    assert Counter(consumer.seen) == Counter(range(200))
    assert again.seen == [1_000]
    ignored = [event for event in events if isinstance(event, RecordIgnored) and event.ledger.endswith(".ledger")]
    assert len(ignored) == len(JUNK) * (PARTITIONS + 1)
    with Admin(settings.kafka) as admin:
        assert dead_letter_topic(settings, name, "shop") not in admin.names()


# The future


def test_a_record_of_the_future_ends_its_partition_only_also_with_all_hands_full_of_it(
    settings: Settings, name: str
) -> None:
    gate = threading.Event()

    def work(message: Message) -> None:
        if message.payload < 8:
            assert gate.wait(60)

    consumer = Consumer(settings, name, do=work, in_hand_max=8, concurrency=16)
    with recorded_events() as events:
        with working(consumer):
            for number in range(8):
                write(settings, name, 0, str(number).encode())
            eventually(lambda: sorted(consumer.seen) == list(range(8)))
            write(settings, ledger_of(settings, name), 0, enveloped(b"from the future", version=7))
            eventually(lambda: any(isinstance(event, PartitionHalted) for event in events))
            eventually(lambda: consumer.partitions == {1, 2, 3})
            gate.set()
            for partition in (1, 2, 3):
                write(settings, name, partition, *(str(100 * partition + number).encode() for number in range(20)))
            eventually(lambda: len(consumer.seen) == 68)
            stopping_s = time.monotonic()
        stopping_s = time.monotonic() - stopping_s

    [halted] = [event for event in events if isinstance(event, PartitionHalted)]
    assert (halted.ledger, halted.partition) == (ledger_of(settings, name), 0)
    assert Counter(consumer.seen) == Counter([*range(8), *(100 * p + n for p in (1, 2, 3) for n in range(20))])
    assert stopping_s < 10


def test_a_worker_whose_partitions_all_have_records_of_the_future_stops_and_says_what_to_do(
    settings: Settings, name: str
) -> None:
    make_ledger(settings.kafka, ledger_of(settings, name), partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        write(settings, ledger_of(settings, name), partition, enveloped(b"from the future", version=7))

    failure = failure_of(Consumer(settings, name))

    assert isinstance(failure, Halted)
    assert "protocol version 7" in str(failure)
    assert "upgrade Penstock" in failure.next_step


# Topics that are not what they should be


@pytest.mark.parametrize(
    ("setting", "value"),
    [("cleanup.policy", "compact"), ("message.timestamp.type", "CreateTime")],
)
def test_a_ledger_with_a_wrong_setting_is_refused_with_the_command_that_mends_it(
    settings: Settings, name: str, setting: str, value: str
) -> None:
    facts, snapshots = ledger_topics(ledger_of(settings, name), PARTITIONS)
    wrong = TopicSpec(name=facts.name, partitions=PARTITIONS, config={**facts.config, setting: value}, reason="a test")
    with Admin(settings.kafka) as admin:
        admin.create([wrong, snapshots])

    failure = failure_of(Consumer(settings, name))
    done = mend(settings, look(settings))
    consumer = Consumer(settings, name)
    with working(consumer):
        consumer.queue.send(1)
        eventually(lambda: consumer.seen)

    assert isinstance(failure, Refused)
    assert f"{facts.name} would not keep a ledger's promises: {setting}={value}" in str(failure)
    assert failure.next_step == "run `penstock doctor --fix`"
    assert any(f"set {setting} from {value} to" in each and f"of topic {facts.name}" in each for each in done)


def test_a_topic_that_was_made_anew_is_refused_by_name_while_it_is_worked_on_and_afterwards(
    settings: Settings, name: str
) -> None:
    consumer = Consumer(settings, name)
    with recorded_events() as events, consumer.app, consumer.app.working() as [station]:
        consumer.queue.send_many(range(20))
        eventually(lambda: len(consumer.seen) == 20)
        with Admin(settings.kafka) as admin:
            admin.delete([name])
            admin.create([TopicSpec(name=name, partitions=PARTITIONS, config={}, reason="a test")])
        assert station.join(60), "it goes on"
        failure = station.failure
    later = failure_of(Consumer(settings, name))

    assert isinstance(failure, Refused)
    assert f"topic {name} was deleted and made anew" in str(failure)
    assert f"delete {ledger_of(settings, name)}" in failure.next_step
    assert isinstance(later, GenesisMismatch)
    assert ledger_of(settings, name) in str(later)
    assert len(consumer.seen) == 20
    assert not [event for event in events if isinstance(event, DataLost)], "nothing is known of what was lost"


def test_a_topic_that_grows_under_load_is_worked_on_as_a_whole_within_half_a_minute(
    settings: Settings, name: str
) -> None:
    a, b = Consumer(settings, name), Consumer(settings, name)
    sent: list[int] = []
    stop = threading.Event()

    def feed() -> None:
        with sender(settings, name) as queue:
            while not stop.wait(0.05):
                fresh = list(range(len(sent), len(sent) + 20))
                queue.send_many(fresh)
                sent.extend(fresh)

    feeder = threading.Thread(target=feed)
    with working(a, b):
        feeder.start()
        try:
            eventually(lambda: len(a.seen) + len(b.seen) > 200)
            with Admin(settings.kafka) as admin:
                admin.grow(name, 2 * PARTITIONS)
            for partition in range(PARTITIONS, 2 * PARTITIONS):
                write(settings, name, partition, b"%d" % -partition)
            eventually(lambda: {n for n in (*a.seen, *b.seen) if n < 0} == {-4, -5, -6, -7}, within_s=30)
        finally:
            stop.set()
            feeder.join()
        eventually(lambda: len(a.seen) + len(b.seen) >= len(sent) + PARTITIONS)

    assert Counter(a.seen + b.seen) == Counter([*sent, -4, -5, -6, -7])


# Values


def test_null_empty_and_large_values_are_messages_like_any_other(settings: Settings, name: str) -> None:
    app = penstock.App("shop", settings=settings)
    queue = app.queue(name, lease="3s", backoff="100ms")
    large = os.urandom(1_000_000)
    seen: list[tuple[bytes | None, int]] = []

    @queue.handler()
    def handle(value: bytes | None, message: Message) -> Retry | None:
        seen.append((value, message.attempt))
        return Retry("10ms") if message.attempt == 1 else None

    with app, app.working():
        write(settings, name, 0, None, b"", b"x")
        queue.send(large)
        eventually(lambda: len(seen) == 8 and lag(settings, name) == 0)

    assert Counter(seen) == Counter([(value, attempt) for value in (None, b"", b"x", large) for attempt in (1, 2)])


# Retention


def test_unfinished_messages_that_retention_deletes_are_told_exactly_and_work_goes_on(
    settings: Settings, name: str
) -> None:
    def work(message: Message) -> Retry | None:
        return Retry("2s") if message.payload in (3, 4, 7) and message.attempt == 1 else None

    # Who had them may have kept them in memory; who comes after has to read them.
    first, second = Consumer(settings, name, do=work), Consumer(settings, name, do=work)
    with working(first):
        append(settings.kafka, TopicPartition(name, 1), *(b"%d" % number for number in range(10)))
        eventually(lambda: sorted(first.seen) == list(range(10)))
    with Admin(settings.kafka) as admin:
        admin.cut(TopicPartition(name, 1), 6)
    with recorded_events() as events, working(second):
        eventually(lambda: second.seen == [7])
        second.queue.send_many(range(100, 120))
        eventually(lambda: lag(settings, name) == 0 and len(second.seen) == 21)

    assert [(each.topic, each.partition, each.start, each.end) for each in events if isinstance(each, DataLost)] == [
        (name, 1, 3, 5)
    ]
    assert Counter(second.seen) == Counter([7, *range(100, 120)])


def test_messages_that_were_deleted_while_nobody_worked_are_told_exactly_and_work_goes_on(
    settings: Settings, name: str
) -> None:
    first = Consumer(settings, name)
    with working(first):
        append(settings.kafka, TopicPartition(name, 2), *(b"%d" % number for number in range(5)))
        eventually(lambda: lag(settings, name) == 0 and len(first.seen) == 5)
    append(settings.kafka, TopicPartition(name, 2), *(b"%d" % number for number in range(5, 20)))
    with Admin(settings.kafka) as admin:
        admin.cut(TopicPartition(name, 2), 12)
    second, metrics = Consumer(settings, name), Metrics()
    with recorded_events() as events, subscribed(metrics), working(second):
        eventually(lambda: lag(settings, name) == 0 and len(second.seen) == 8)

    assert [(each.topic, each.partition, each.start, each.end) for each in events if isinstance(each, DataLost)] == [
        (name, 2, 5, 12)
    ]
    assert metrics.registry.get_sample_value("penstock_records_lost_total", {"topic": name}) == 7
    assert sorted(second.seen) == list(range(12, 20))
    # They have an end of their own: it is not the next message that finishes them.
    ends = {offset: (fate.drops, len(fate.acks)) for (_, offset), fate in fates(settings, name).items()}
    assert ends == {offset: (1, 0) if 5 <= offset < 12 else (0, 1) for offset in range(20)}


def test_what_is_deleted_behind_the_last_message_that_was_handled_does_not_stay_open(
    settings: Settings, name: str
) -> None:
    # The client reads little ahead by itself, so that the rest has to be asked for when it is gone.
    client = {"queued.min.messages": "10", "fetch.message.max.bytes": "20000"}
    settings = replace(settings, kafka=replace(settings.kafka, client=client))
    go_on = threading.Event()
    consumer = Consumer(settings, name, do=lambda _: go_on.wait(60), in_hand_max=20, lease="10s")
    with recorded_events() as events, working(consumer):
        append(settings.kafka, TopicPartition(name, 1), *(b"%d" % number + b" " * 1_000 for number in range(2_000)))
        eventually(lambda: consumer.seen)
        with Admin(settings.kafka) as admin:
            admin.cut(TopicPartition(name, 1), 2_000)
        go_on.set()
        eventually(lambda: lag(settings, name) == 0)

    [lost] = [each for each in events if isinstance(each, DataLost)]
    assert 0 < lost.start < lost.end == 2_000
    assert sorted(consumer.seen) == list(range(lost.start))


def test_a_partition_of_which_all_was_deleted_is_told_and_the_next_message_is_handled(
    settings: Settings, name: str
) -> None:
    append(settings.kafka, TopicPartition(name, 2), *(b"%d" % number for number in range(6)))
    first, second = (
        Consumer(settings, name, do=lambda message: Retry("2s") if message.attempt == 1 else None) for _ in range(2)
    )
    with working(first):
        eventually(lambda: len(first.seen) == 6)
    with Admin(settings.kafka) as admin:
        admin.cut(TopicPartition(name, 2), 6)
    with recorded_events() as events, working(second):
        eventually(lambda: lag(settings, name) == 0)
        append(settings.kafka, TopicPartition(name, 2), b"6")
        eventually(lambda: second.seen == [6, 6])

    lost = [(each.start, each.end) for each in events if isinstance(each, DataLost)]
    assert sorted(offset for start, end in lost for offset in range(start, end)) == list(range(6))


def test_messages_that_were_deleted_while_a_lost_worker_had_them_are_told_exactly_and_the_others_come_again(
    settings: Settings, name: str
) -> None:
    first = Consumer(settings, name)
    with working(first):
        eventually(lambda: len(first.partitions) == PARTITIONS)
        append(settings.kafka, TopicPartition(name, 3), b"0")
        eventually(lambda: first.seen)
    append(settings.kafka, TopicPartition(name, 3), *(b"%d" % number for number in range(1, 10)))
    write(settings, ledger_of(settings, name), 3, encode(Taken("lost", 1, ((1, 6),), 1_000)))
    with Admin(settings.kafka) as admin:
        admin.cut(TopicPartition(name, 3), 4)
    second = Consumer(settings, name)
    with recorded_events() as events, working(second):
        eventually(lambda: lag(settings, name) == 0 and len(second.seen) == 6)

    assert [(each.partition, each.start, each.end) for each in events if isinstance(each, DataLost)] == [(3, 1, 4)]
    assert sorted(second.seen) == list(range(4, 10))
