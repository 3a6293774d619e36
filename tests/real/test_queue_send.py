"""Sending to a queue on a real broker: what arrives, where, what fails, and what is said of it."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import confluent_kafka
import pytest
from real_kafka import eventually, new_topic, settings_for

from penstock.errors import BrokerUnavailable, NotAllSent, NotFound, OutcomeUnknown, TransientError, UsageError
from penstock.kafka.reader import EARLIEST, Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.transactions import Transactions
from penstock.queue.headers import marks_of
from penstock.queue.outgoing import Outgoing
from penstock.queue.partitioning import partition_of
from penstock.queue.sending import Sender, Sent
from penstock.queue.writers import Writers
from penstock.settings import KafkaSettings, SendSettings
from penstock.testing.proxy import Api, FrameProxy, Side
from penstock.values import TopicPartition, duration

PARTITIONS = 4


@pytest.fixture
def settings(penstock_broker: Any) -> KafkaSettings:
    return settings_for(penstock_broker.bootstrap)


@pytest.fixture
def admin(settings: KafkaSettings) -> Iterator[Admin]:
    with Admin(settings) as opened:
        yield opened


@pytest.fixture
def topic(admin: Admin, settings: KafkaSettings) -> str:
    """One whose partitions all have a leader: what is refused before that brings the broker's own address, and the
    client would go past a proxy.
    """
    name = new_topic(admin, partitions=PARTITIONS)
    with Reader(settings) as reader:
        for number in range(PARTITIONS):
            eventually(lambda: has_leader(reader, TopicPartition(name, number)))  # noqa: B023
    return name


def has_leader(reader: Reader, partition: TopicPartition) -> bool:
    try:
        return reader.bounds(partition) == (0, 0)
    except (NotFound, TransientError):
        return False


@pytest.fixture
def sender(settings: KafkaSettings, topic: str) -> Iterator[Sender]:
    with Sender(settings, topic) as opened:
        yield opened


def everything_in(settings: KafkaSettings, topic: str, *, partitions: int = PARTITIONS) -> list[Any]:
    """All records that a reader of committed ones sees, partition by partition."""
    found: list[Any] = []
    with Reader(settings) as reader:
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            _, end = reader.bounds(partition)
            reader.assign({partition: EARLIEST})
            eventually(lambda: found.extend(reader.read(1_000, 200)) or reader.position(partition) >= end)  # noqa: B023
    return found


def impatient(proxy: FrameProxy, topic: str, timeout: str) -> Sender:
    return Sender(settings_for(proxy.bootstrap), topic, settings=SendSettings(timeout=duration(timeout)))


def per_partition(records: list[Any]) -> list[int]:
    counts = Counter(record.partition() for record in records)
    return [counts[number] for number in range(PARTITIONS)]


def test_a_message_is_where_its_receipt_says_with_all_that_was_said_of_it(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    receipt = sender.send(
        {"a": 1}, key="k", headers={"traceparent": "00-1-2-01"}, at=datetime(2030, 1, 1, tzinfo=UTC), ttl="1h"
    )

    (record,) = everything_in(settings, topic)
    assert receipt == Sent(marks_of(record.headers()).id, record.partition(), record.offset())  # type: ignore[arg-type]
    assert uuid.UUID(receipt.id).version == 7
    assert (record.value(), record.key()) == (b'{"a":1}', b"k")
    assert record.headers()[1:] == [
        ("penstock-due-ms", b"1893456000000"),
        ("penstock-expires-ms", b"1893459600000"),
        ("traceparent", b"00-1-2-01"),
        ("content-type", b"application/json"),
    ]


def test_null_and_empty_payloads_and_keys_stay_what_they_are(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    sender.send(None, key=b"")
    sender.send_many([Outgoing(b"", key=b""), Outgoing(None, key="")])

    found = [(record.value(), record.key()) for record in everything_in(settings, topic)]
    assert found == [(None, b""), (b"", b""), (None, b"")]


def test_a_queue_that_shares_a_topic_is_named_on_every_message(settings: KafkaSettings, topic: str) -> None:
    with Sender(settings, "light", topic=topic) as sender:
        sender.send(b"1")
        sender.send_many([b"2", Outgoing(b"3", key="k")])

    assert [marks_of(record.headers()).queue for record in everything_in(settings, topic)] == ["light"] * 3


def test_messages_without_a_key_spread_evenly_also_when_they_are_few(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    for number in range(PARTITIONS):
        sender.send(str(number))
    assert per_partition(everything_in(settings, topic)) == [1] * PARTITIONS

    sender.send_many([b"x"] * (2 * PARTITIONS))
    sender.send_many([{"json": True}] * PARTITIONS)
    assert per_partition(everything_in(settings, topic)) == [4] * PARTITIONS


def test_a_key_goes_where_the_clients_own_murmur2_puts_it(settings: KafkaSettings, topic: str, sender: Sender) -> None:
    keys = [*(f"customer-{number}".encode() for number in range(200)), b"", b"\x00", b"\xff" * 7, "größe".encode()]
    client = confluent_kafka.Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key in keys:
        client.produce(topic, value=b"theirs", key=key)
    assert client.flush(30) == 0
    sender.send_many([Outgoing(b"ours", key=key) for key in keys])
    one = sender.send(b"ours", key=keys[0])

    places: dict[bytes, set[int]] = {}
    for record in everything_in(settings, topic):
        places.setdefault(record.key(), set()).add(record.partition())
    assert places == {key: {partition_of(key, PARTITIONS)} for key in keys}
    assert one.partition == partition_of(keys[0], PARTITIONS)


def test_many_arrive_each_once_and_in_order_within_their_partition(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    count = 20_000
    assert sender.send_many([b"%d" % number for number in range(count)]) == count

    records = everything_in(settings, topic)
    values = [int(record.value()) for record in records]
    assert sorted(values) == list(range(count))
    assert per_partition(records) == [count // PARTITIONS] * PARTITIONS
    assert values == sorted(values, key=lambda value: (value - values[0]) % PARTITIONS)
    assert {record.headers() for record in records} == {None}


def test_messages_of_one_key_keep_their_order_whatever_they_carry(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    values: list[Any] = [number if number % 3 else b"%d" % number for number in range(3_000)]
    sender.send_many([Outgoing(value, key="one") for value in values])

    assert [int(record.value()) for record in everything_in(settings, topic)] == list(range(3_000))


def test_ids_of_many_are_those_that_were_given(settings: KafkaSettings, topic: str, sender: Sender) -> None:
    sender.send_many([Outgoing(b"a", key="k", id="order-1"), Outgoing(b"b", key="k")], headers={"h": b"1"})

    assert [record.headers() for record in everything_in(settings, topic)] == [
        [("penstock-id", b"order-1"), ("h", b"1")],
        [("h", b"1")],
    ]


def test_futures_have_the_receipts_in_order_and_cannot_be_called_back(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    futures = [sender.send_soon(b"%d" % number, key="k", id=f"i{number}") for number in range(1_000)]
    cancelled = [future.cancel() for future in futures]
    receipts = [future.result(30) for future in futures]

    assert not any(cancelled)
    assert [receipt.id for receipt in receipts] == [f"i{number}" for number in range(1_000)]
    offsets = [receipt.offset for receipt in receipts]
    assert offsets == sorted(offsets, key=lambda offset: offset or 0)
    assert [(record.offset(), int(record.value())) for record in everything_in(settings, topic)] == [
        (offset, number) for number, offset in enumerate(offsets)
    ]


def test_a_callback_may_send_soon_and_is_told_that_it_must_not_wait(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    told: list[Any] = []

    def follow_up(done: Future[Sent]) -> None:
        for call in (sender.send, lambda value: sender.send_many([value])):
            try:
                call(b"never")
            except UsageError as refused:
                told.append(refused.what)
        told.append(sender.send_soon(b"second"))

    sender.send_soon(b"first").add_done_callback(follow_up)
    eventually(lambda: len(told) == 3)

    assert told[2].result(30).offset is not None
    assert told[0] == told[1] == "a callback of a send waits for another send, which would never be reported"
    assert {record.value() for record in everything_in(settings, topic)} == {b"first", b"second"}


def test_a_topic_that_was_deleted_is_named_and_found_again(
    admin: Admin, settings: KafkaSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.writers._PARTITIONS_AGE_S", 0.0)
    with Sender(settings, topic) as sender:
        sender.send(b"old")
        admin.delete([topic])
        with pytest.raises(NotFound, match=topic):
            eventually(lambda: sender.send(b"lost") and False)
        admin.create([TopicSpec(name=topic, partitions=1, config={}, reason="a test")])
        eventually(lambda: arrived(sender, b"new"))

    assert b"old" not in {record.value() for record in everything_in(settings, topic, partitions=1)}


def arrived(sender: Sender, value: bytes) -> bool:
    try:
        return sender.send(value).partition == 0
    except (NotFound, TransientError):
        return False


def test_threads_may_share_a_sender(settings: KafkaSettings, topic: str, sender: Sender) -> None:
    def work(number: int) -> None:
        sender.send(f"one-{number}")
        sender.send_many([f"many-{number}-{each}" for each in range(100)])
        sender.send_many([f"plain-{number}-{each}".encode() for each in range(100)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    values = Counter(record.value() for record in everything_in(settings, topic))
    assert len(values) == 8 * 201
    assert set(values.values()) == {1}


@pytest.mark.parametrize("durability", ["leader", "none"])
def test_with_less_durability_messages_arrive_too(
    settings: KafkaSettings, topic: str, sender: Sender, durability: Any
) -> None:
    receipt = sender.send(b"one", durability=durability)
    sender.send_many([b"many"] * 100, durability=durability)
    sender.send_soon(b"soon", durability=durability).result(30)

    eventually(lambda: len(everything_in(settings, topic)) == 102)
    assert (receipt.offset is None) == (durability == "none")


def test_a_durability_that_is_none_of_ours_is_refused(sender: Sender) -> None:
    with pytest.raises(UsageError, match="there is no durability 'best'; use one of replicated, leader, none"):
        sender.send(b"x", durability="best")  # type: ignore[arg-type]


def test_producers_are_made_when_they_are_first_used(settings: KafkaSettings, topic: str) -> None:
    before = threading.active_count()
    with Writers(settings) as writers:
        Sender(settings, topic, writers=writers)
        assert threading.active_count() == before
        Sender(settings, topic, writers=writers).send(b"x")
        Sender(settings, topic, writers=writers).send(b"y")
        assert threading.active_count() == before + 1
    eventually(lambda: threading.active_count() == before)


def test_a_producer_that_gave_up_for_good_is_replaced(
    settings: KafkaSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writers(settings) as writers:
        sender = Sender(settings, topic, writers=writers)
        sender.send(b"before")
        spent = writers.get("replicated")
        monkeypatch.setattr(spent, "_is_broken", True)
        sender.send(b"after")

        assert writers.get("replicated") is not spent
        with pytest.raises(UsageError, match="this writer is closed"):
            spent.partitions(topic, timeout_s=1)
    assert len(everything_in(settings, topic)) == 2


def test_within_the_default_limits_everything_goes(settings: KafkaSettings, topic: str, sender: Sender) -> None:
    headers = {f"h{number:02}": b"x" * 253 for number in range(64)}
    sender.send(b"x" * 1_000_000, key=b"k" * 1_024, headers=headers)
    sender.send_many([Outgoing(b"x" * 1_000_000, key=b"k" * 1_024)] * 3)

    assert [len(record.value()) for record in everything_in(settings, topic)] == [1_000_000] * 4


@pytest.mark.parametrize(
    ("wrong", "objection"),
    [
        (b"x" * 1_000_001, "a payload of 1000001 bytes"),
        (Outgoing(b"x", key="k" * 1_025), "a key of 1025 bytes"),
        (Outgoing(b"x", headers={"penstock-id": b"1"}), "Penstock's own"),
        (object(), "cannot be sent as JSON"),
    ],
)
def test_one_message_beyond_a_limit_among_many_and_nothing_is_sent(
    settings: KafkaSettings, topic: str, sender: Sender, wrong: Any, objection: str
) -> None:
    with pytest.raises(UsageError, match=objection):
        sender.send_many([*[b"fine"] * 1_000, wrong])
    sender.send(b"after")

    assert [record.value() for record in everything_in(settings, topic)] == [b"after"]


def test_a_topic_that_does_not_exist_is_named_and_not_made(settings: KafkaSettings, admin: Admin) -> None:
    name = f"absent-{uuid.uuid4().hex[:8]}"
    with Sender(settings, name) as sender:
        with pytest.raises(NotFound, match=name):
            sender.send(b"x")
        with pytest.raises(NotFound, match=name):
            sender.send_many([b"x"])

    assert name not in admin.names()


def test_a_broker_that_is_away_from_the_start_is_a_definite_failure() -> None:
    with Sender(settings_for("127.0.0.1:1", request_timeout="1s"), "t") as sender, pytest.raises(BrokerUnavailable):
        sender.send(b"x")


def test_when_the_acknowledgement_is_lost_once_the_message_is_there_once(
    settings: KafkaSettings, topic: str, penstock_broker: Any
) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy, impatient(proxy, topic, "9s") as sender:
        lost = proxy.drop(Api.PRODUCE, side=Side.RESPONSE, times=1)
        receipt = sender.send(b"once")
        assert lost.caught == 1

    (record,) = everything_in(settings, topic)
    assert (record.value(), record.offset()) == (b"once", receipt.offset)


def test_when_no_acknowledgement_comes_the_outcome_is_unknown_and_the_message_is_there_once(
    settings: KafkaSettings, topic: str, penstock_broker: Any
) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy, impatient(proxy, topic, "2s") as sender:
        sender.send(b"before", key="k")
        lost = proxy.drop(Api.PRODUCE, side=Side.RESPONSE)
        with pytest.raises(OutcomeUnknown, match="whether message order-7 is in") as unknown:
            sender.send(b"in doubt", key="k", id="order-7")
        assert unknown.value.id == "order-7"
        assert isinstance(unknown.value.__cause__, TransientError)
        assert lost.caught >= 1
        lost.lift()
        sender.send(b"after", key="k")

    records = everything_in(settings, topic)
    assert [record.value() for record in records] == [b"before", b"in doubt", b"after"]
    assert marks_of(records[1].headers()).id == "order-7"


def test_when_requests_do_not_reach_the_broker_many_name_exactly_those_in_doubt(
    settings: KafkaSettings, topic: str, penstock_broker: Any
) -> None:
    blocked = partition_of(b"blocked", PARTITIONS)
    passing = next(key for key in (b"%d" % n for n in range(99)) if partition_of(key, PARTITIONS) != blocked)
    messages: list[Any] = [Outgoing(b"%d" % n, key=passing) for n in range(10)]
    messages[3] = Outgoing(b"DOUBT plain", key=b"blocked")
    messages[6] = Outgoing({"DOUBT": "json"}, key=b"blocked", id="seven")
    with FrameProxy(penstock_broker.bootstrap) as proxy, impatient(proxy, topic, "3s") as sender:
        sender.send_many(messages[:3])
        rule = proxy.drop(Api.PRODUCE)
        rule.matches = lambda frame: b"DOUBT" in frame.body
        with pytest.raises(NotAllSent, match=r"2 messages were not sent .* number 3") as told:
            sender.send_many(messages)
        rule.lift()

    failures = told.value.failures
    assert [(failure.index, failure.id) for failure in failures] == [(3, None), (6, "seven")]
    assert all(isinstance(failure.reason, OutcomeUnknown) for failure in failures)
    assert failures[1].reason.id == "seven"  # type: ignore[attr-defined]
    arrived = Counter(record.value() for record in everything_in(settings, topic))
    assert arrived == {b"%d" % n: 1 + (n < 3) for n in range(10) if n not in (3, 6)}


def test_what_the_broker_refuses_is_a_definite_failure_and_names_the_message(
    admin: Admin, settings: KafkaSettings
) -> None:
    narrow = new_topic(admin, partitions=1, config={"max.message.bytes": "2000"})
    with Sender(settings, narrow) as sender:
        with pytest.raises(UsageError, match=r"max\.message\.bytes"):
            sender.send(b"x" * 5_000)
        future: Future[Sent] = sender.send_soon(b"x" * 5_000)
        assert isinstance(future.exception(30), UsageError)
        with pytest.raises(NotAllSent) as told:
            sender.send_many([b"x" * 5_000])
        assert [failure.index for failure in told.value.failures] == [0]
        assert isinstance(told.value.failures[0].reason, UsageError)
        sender.send(b"fits")

    assert [record.value() for record in everything_in(settings, narrow, partitions=1)] == [b"fits"]


def test_a_topic_that_grows_is_noticed(
    admin: Admin, settings: KafkaSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.writers._PARTITIONS_AGE_S", 0.1)
    with Sender(settings, topic) as sender:
        sender.send(b"x")
        admin.grow(topic, PARTITIONS + 2)
        seen: set[int] = set()
        eventually(lambda: seen.add(sender.send(b"x").partition) or len(seen) == PARTITIONS + 2)


def test_while_the_broker_is_away_messages_wait_and_then_arrive(
    settings: KafkaSettings, topic: str, penstock_broker: Any
) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy, impatient(proxy, topic, "30s") as sender:
        sender.send(b"before")
        proxy.refuse()
        futures = [sender.send_soon(b"%d" % number) for number in range(10)]
        proxy.accept()
        assert len({future.result(60) for future in futures}) == 10

    assert len(everything_in(settings, topic)) == 11


def test_when_connections_break_under_load_every_message_arrives_once(
    settings: KafkaSettings, topic: str, penstock_broker: Any
) -> None:
    count, over = 30_000, threading.Event()
    # So many in all: a network that always breaks before an answer comes would let nothing through.
    cuts_left = 30

    def cut_often(proxy: FrameProxy) -> None:
        nonlocal cuts_left
        while cuts_left and not over.wait(0.1):
            proxy.cut()
            cuts_left -= 1

    with FrameProxy(penstock_broker.bootstrap) as proxy, impatient(proxy, topic, "60s") as sender:
        sender.send(b"before")
        cutter = threading.Thread(target=cut_often, args=(proxy,))
        cutter.start()
        try:
            for start in range(0, count, 3_000):
                sender.send_many([b"%d" % number for number in range(start, start + 3_000)])
        finally:
            over.set()
            cutter.join()

    assert cuts_left < 30
    values = Counter(record.value() for record in everything_in(settings, topic))
    assert len(values) == count + 1
    assert set(values.values()) == {1}


def test_a_full_queue_is_waited_for_and_nothing_is_lost(settings: KafkaSettings, topic: str) -> None:
    small = settings_for(settings.bootstrap_servers, queue_buffering_max_messages="50")
    with Sender(small, topic) as sender:
        sender.send_many([b"%d" % number for number in range(3_000)])
        sender.send_many([Outgoing(b"%d" % number, key="k") for number in range(3_000, 4_000)])
        sender.send_many([{"n": number} for number in range(1_000)])

    records = everything_in(settings, topic)
    assert len({record.value() for record in records}) == 5_000
    keyed = [int(record.value()) for record in records if record.key() == b"k"]
    assert keyed == list(range(3_000, 4_000))


def test_a_queue_that_stays_full_is_a_definite_failure_of_what_found_no_room(
    topic: str, penstock_broker: Any, settings: KafkaSettings
) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy:
        small = settings_for(proxy.bootstrap, queue_buffering_max_messages="10", message_timeout_ms="6000")
        with Sender(small, topic, settings=SendSettings(timeout=duration("1s"))) as sender:
            sender.send(b"before")
            held = proxy.hold(Api.PRODUCE)
            futures = [sender.send_soon(b"%d" % number) for number in range(10)]
            with pytest.raises(TransientError, match="found the send queue full for 1 s"):
                sender.send(b"no room")
            held.release()
            for future in futures:
                future.exception(30)

    assert b"no room" not in {record.value() for record in everything_in(settings, topic)}


def test_inside_a_transaction_messages_are_seen_when_it_commits_and_never_when_it_aborts(
    settings: KafkaSettings, topic: str, sender: Sender
) -> None:
    with Transactions(settings, group="g", instance=uuid.uuid4().hex[:8], announce=lambda id: None) as transactions:
        transactions.open()
        with pytest.raises(UsageError):
            sender.send(b"outside", transaction=transactions)
        transactions.begin()
        receipt = sender.send({"n": 1}, key="k", transaction=transactions)
        assert sender.send_many([b"2", Outgoing(b"3", key="k", id="three")], transaction=transactions) == 2
        assert everything_in(settings, topic) == []
        transactions.commit()
        transactions.begin()
        sender.send(b"gone", transaction=transactions)
        with pytest.raises(UsageError, match="a payload of 1000001 bytes"):
            sender.send_many([b"gone", b"x" * 1_000_001], transaction=transactions)
        transactions.abort()

    # A commit is answered before its markers are in all partitions.
    eventually(lambda: len(everything_in(settings, topic)) >= 3)
    records = {record.value(): record for record in everything_in(settings, topic)}
    assert set(records) == {b'{"n":1}', b"2", b"3"}
    first = records[b'{"n":1}']
    assert (receipt.id, receipt.partition, receipt.offset) == (marks_of(first.headers()).id, first.partition(), None)
    assert marks_of(records[b"3"].headers()).id == "three"


def test_a_transaction_is_replicated_or_nothing(sender: Sender) -> None:
    with pytest.raises(UsageError, match="a transaction is replicated, not 'leader'"):
        sender.send(b"x", durability="leader", transaction=object())  # type: ignore[arg-type]


def test_closing_waits_for_what_is_under_way_and_then_nothing_more_goes(settings: KafkaSettings, topic: str) -> None:
    sender = Sender(settings, topic)
    futures = [sender.send_soon(b"%d" % number) for number in range(1_000)]
    sender.close()
    sender.close()

    assert all(future.done() for future in futures)
    assert len(everything_in(settings, topic)) == 1_000
    with pytest.raises(UsageError, match="sending is over"):
        sender.send(b"x")


def test_closing_without_an_answer_tells_every_future(topic: str, penstock_broker: Any) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy:
        writers = Writers(settings_for(proxy.bootstrap))
        sender = Sender(settings_for(proxy.bootstrap), topic, writers=writers)
        sender.send(b"before")
        held = proxy.hold(Api.PRODUCE)
        future = sender.send_soon(b"x", id="i")
        held.wait()
        assert writers.close(timeout_ms=100) == 1

        failure = future.exception(10)
        assert isinstance(failure, OutcomeUnknown)
        assert failure.id == "i"
        held.release()
