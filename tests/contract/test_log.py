"""What every log must do, in memory and on a real broker alike."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from real_kafka import eventually

from penstock.errors import Fenced, NotFound, OffsetGone, TransactionBroken
from penstock.ledger.log import Entry, Log, Transactions
from penstock.ledger.memory_log import MemoryBroker
from penstock.settings import KafkaSettings

_names = (f"contract-{number}" for number in itertools.count())

OpenLog = Callable[[], Log]


@pytest.fixture(params=["memory", "kafka"])
def open_log(request: pytest.FixtureRequest) -> Iterator[OpenLog]:
    """Opens the same new topic of two partitions, as often as asked."""
    topic = next(_names)
    opened: list[Log] = []
    make = _memory(topic) if request.param == "memory" else _kafka(topic, request)

    def open_one() -> Log:
        opened.append(make())
        return opened[-1]

    yield open_one
    for log in opened:
        log.close()


def _memory(topic: str) -> OpenLog:
    broker = MemoryBroker(now_ms=lambda: time.time_ns() // 1_000_000)
    broker.create(topic, 2)
    return lambda: broker.log(topic)


def _kafka(topic: str, request: pytest.FixtureRequest) -> OpenLog:
    from penstock.kafka.topics import Admin
    from penstock.ledger.kafka_log import KafkaLog
    from penstock.ledger.topics import ledger_topics

    settings = KafkaSettings(bootstrap_servers=request.getfixturevalue("penstock_broker").bootstrap)
    with Admin(settings) as admin:
        admin.create([ledger_topics(topic, 2)[0]])
    return lambda: KafkaLog(settings, topic)


def read_until(log: Log, partition: int, end: int) -> list[Entry]:
    """Read until the position is at `end`; a generous limit instead of a sleep."""
    entries: list[Entry] = []
    deadline = time.monotonic() + 60
    while log.position(partition) < end and time.monotonic() < deadline:
        entries += log.read(100, 200)
    assert log.position(partition) >= end
    return entries


def appended(log: Log, *values: bytes, partition: int = 0) -> None:
    for value in values:
        log.append(partition, value)
    log.flush(30_000)


def test_what_was_appended_is_read_in_order_with_key_and_offset(open_log: OpenLog) -> None:
    log = open_log()
    log.append(0, b"one", b"k1")
    log.append(0, b"two")
    log.append(0, None, b"k3")
    log.flush(30_000)
    log.assign({0: 0})

    entries = read_until(log, 0, 3)

    assert [(e.partition, e.offset, e.key, e.value) for e in entries] == [
        (0, 0, b"k1", b"one"),
        (0, 1, None, b"two"),
        (0, 2, b"k3", None),
    ]


def test_times_are_the_brokers_append_times(open_log: OpenLog) -> None:
    log = open_log()
    before_ms = time.time_ns() // 1_000_000
    appended(log, b"x")
    after_ms = time.time_ns() // 1_000_000
    log.assign({0: 0})

    [entry] = read_until(log, 0, 1)

    assert before_ms - 5 <= entry.time_ms <= after_ms + 5


def test_another_reader_sees_the_same(open_log: OpenLog) -> None:
    writer, reader = open_log(), open_log()
    reader.assign({0: 0})
    appended(writer, b"a", b"b")

    assert [entry.value for entry in read_until(reader, 0, 2)] == [b"a", b"b"]


def test_partitions_are_apart_and_only_the_assigned_are_read(open_log: OpenLog) -> None:
    log = open_log()
    appended(log, b"here", partition=0)
    appended(log, b"there", partition=1)
    log.assign({1: 0})

    assert [(e.partition, e.value) for e in read_until(log, 1, 1)] == [(1, b"there")]
    assert log.partition_count() == 2


def test_reading_starts_where_it_was_assigned(open_log: OpenLog) -> None:
    log = open_log()
    appended(log, b"a", b"b", b"c")
    log.assign({0: 1})

    assert [entry.value for entry in read_until(log, 0, 3)] == [b"b", b"c"]
    log.assign({0: 2})
    assert [entry.value for entry in read_until(log, 0, 3)] == [b"c"]


def test_the_bounds_of_an_empty_log_are_zero(open_log: OpenLog) -> None:
    assert open_log().bounds([0, 1]) == {0: (0, 0, 0), 1: (0, 0, 0)}


@contextmanager
def transactions(log: Log, instance: str = "one") -> Iterator[Transactions]:
    opened = log.transactions(group=log.name, instance=instance, announce=lambda transactional_id: None)
    opened.open()
    yield opened
    opened.close()


def test_an_open_transaction_hides_what_follows_it(open_log: OpenLog) -> None:
    log = open_log()
    appended(log, b"before")
    with transactions(log) as writer:
        writer.begin()
        writer.send(log.name, 0, b"inside", key=b"key")
        eventually(lambda: log.bounds([0])[0].end == 2)
        appended(log, b"after")
        log.assign({0: 0})

        bounds = log.bounds([0])[0]
        assert (bounds.stable_end, bounds.end) == (1, 3)
        assert [entry.value for entry in read_until(log, 0, 1)] == [b"before"]

        writer.commit()
        eventually(lambda: log.bounds([0])[0].stable_end == 4)  # the marker has an offset too
        assert [entry.value for entry in read_until(log, 0, 4)] == [b"inside", b"after"]


def test_an_aborted_record_is_never_seen_and_the_position_passes_it(open_log: OpenLog) -> None:
    log = open_log()
    with transactions(log) as writer:
        writer.begin()
        writer.send(log.name, 0, b"no")
        eventually(lambda: log.bounds([0])[0].end == 1)
        writer.abort()
        eventually(lambda: log.bounds([0])[0].stable_end == 2)
        log.assign({0: 0})

        assert read_until(log, 0, 2) == []


def test_a_fence_aborts_what_was_open_and_a_zombie_goes_on_only_under_a_fresh_id(open_log: OpenLog) -> None:
    log = open_log()
    with transactions(log) as zombie:
        zombie.begin()
        zombie.send(log.name, 0, b"zombie")
        eventually(lambda: log.bounds([0])[0].end == 1)
        fenced_id = zombie.id

        log.fence(fenced_id)
        with pytest.raises(Fenced):
            zombie.commit()
        with pytest.raises(TransactionBroken):
            zombie.begin()
        assert zombie.settle_and_renew() != fenced_id
        zombie.begin()
        zombie.send(log.name, 0, b"fresh")
        zombie.commit()

        eventually(lambda: log.bounds([0])[0].stable_end == 4)
        log.assign({0: 0})
        assert [entry.value for entry in read_until(log, 0, 4)] == [b"fresh"]


def test_an_id_is_announced_after_it_was_initialised_and_before_it_is_used(open_log: OpenLog) -> None:
    log, announced = open_log(), list[str]()
    writer = log.transactions(group=log.name, instance="announcing", announce=announced.append)

    first = writer.open()
    log.fence(first)
    writer.begin()
    with pytest.raises((Fenced, TransactionBroken)):
        _send_and_commit(writer, log.name)
    second = writer.settle_and_renew()

    assert announced == [first, second]
    writer.close()


def test_a_cut_moves_the_log_start_and_never_back(open_log: OpenLog) -> None:
    log = open_log()
    appended(log, b"a", b"b", b"c")

    log.cut(0, 2)
    log.cut(0, 1)

    assert log.bounds([0])[0] == (2, 3, 3)
    log.assign({0: 2})
    assert [entry.value for entry in read_until(log, 0, 3)] == [b"c"]


def test_a_position_that_was_cut_away_is_an_error_and_assigning_again_mends_it(open_log: OpenLog) -> None:
    log = open_log()
    appended(log, b"a", b"b", b"c")
    log.cut(0, 2)
    log.assign({0: 0})

    with pytest.raises(OffsetGone) as gone:
        eventually(lambda: bool(log.read(10, 200)))
    assert (gone.value.partition, gone.value.offset) == (0, 0)

    log.assign({0: 2})
    assert [entry.value for entry in read_until(log, 0, 3)] == [b"c"]


def test_a_position_beyond_the_end_is_an_error(open_log: OpenLog) -> None:
    log = open_log()
    appended(log, b"a")
    log.assign({0: 7})

    with pytest.raises(OffsetGone):
        eventually(lambda: bool(log.read(10, 200)))


def test_what_is_appended_while_reading_arrives(open_log: OpenLog) -> None:
    log = open_log()
    log.assign({0: 0})
    assert log.read(10, 0) == []

    for number in range(50):
        log.append(0, b"%d" % number)

    assert [entry.value for entry in read_until(log, 0, 50)] == [b"%d" % number for number in range(50)]


def test_a_topic_that_does_not_exist_is_named(open_log: OpenLog, request: pytest.FixtureRequest) -> None:
    existing = open_log()
    if "memory" in request.node.name:
        missing: Log = MemoryBroker(now_ms=lambda: 0).log("nowhere")
    else:
        from penstock.ledger.kafka_log import KafkaLog

        missing = KafkaLog(existing._settings, "nowhere")  # type: ignore[attr-defined]
    with pytest.raises(NotFound, match="nowhere"):
        missing.partition_count()
    missing.close()


def _send_and_commit(writer: Transactions, topic: str) -> None:
    writer.send(topic, 0, b"x")
    writer.commit()
