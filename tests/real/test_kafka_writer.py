"""The writer on a real broker: what is appended, what fails, and how one hears of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from real_kafka import eventually, new_topic, recorded_events, settings_for, values_in

from penstock.errors import BrokerUnavailable, NotFound, TransientError, UsageError
from penstock.kafka.reader import EARLIEST, Reader
from penstock.kafka.topics import Admin
from penstock.kafka.writer import Failed, Writer
from penstock.observe.events import AppendFailed
from penstock.settings import KafkaSettings
from penstock.testing.proxy import Api, FrameProxy, Side
from penstock.values import TopicPartition


@pytest.fixture
def settings(penstock_broker: Any) -> KafkaSettings:
    return settings_for(penstock_broker.bootstrap)


@pytest.fixture
def admin(settings: KafkaSettings) -> Iterator[Admin]:
    with Admin(settings) as opened:
        yield opened


@pytest.fixture
def partition(admin: Admin) -> TopicPartition:
    return TopicPartition(new_topic(admin), 0)


def test_records_are_appended_in_the_order_in_which_they_were_sent(
    settings: KafkaSettings, partition: TopicPartition
) -> None:
    values = [str(number).encode() for number in range(5_000)]
    with Writer(settings) as writer:
        for value in values:
            writer.send(*partition, value)
        assert writer.flush(30_000) == 0

    assert values_in(settings, partition) == values


def test_key_headers_and_empty_values_survive(settings: KafkaSettings, partition: TopicPartition) -> None:
    with Writer(settings) as writer:
        writer.send(*partition, None, key=b"k", headers=[("a", b"1"), ("a", b"2"), ("none", None)])
        writer.send(*partition, b"")
    with Reader(settings) as reader:
        reader.assign({partition: EARLIEST})
        found: list[Any] = []
        eventually(lambda: found.extend(reader.read(10, 200)) or len(found) == 2)

    assert (found[0].value(), found[0].key()) == (None, b"k")
    assert found[0].headers() == [("a", b"1"), ("a", b"2"), ("none", None)]
    assert (found[1].value(), found[1].key(), found[1].headers()) == (b"", None, None)


def test_an_answer_that_is_lost_does_not_double_the_record(
    settings: KafkaSettings, partition: TopicPartition, penstock_broker: Any
) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy:
        lost = proxy.drop(Api.PRODUCE, side=Side.RESPONSE, times=1)
        with Writer(settings_for(proxy.bootstrap, socket_timeout_ms="1000")) as writer:
            writer.send(*partition, b"once")
            assert writer.flush(30_000) == 0
        assert lost.caught == 1
        assert proxy.seen(Api.PRODUCE) == 2

    assert values_in(settings, partition) == [b"once"]


def test_a_record_that_is_too_large_is_refused_at_send(settings: KafkaSettings, partition: TopicPartition) -> None:
    with Writer(settings) as writer, pytest.raises(UsageError, match=r"2000000 bytes .* max\.message\.bytes"):
        writer.send(*partition, b"x" * 2_000_000)


def test_a_record_that_the_broker_refuses_is_told_as_an_event_and_to_the_callback(
    admin: Admin, settings: KafkaSettings
) -> None:
    narrow = TopicPartition(new_topic(admin, config={"max.message.bytes": "1000"}), 0)
    failed: list[Failed] = []
    with recorded_events() as events, Writer(settings, on_failure=failed.append) as writer:
        writer.send(*narrow, b"x" * 5_000, key=b"k")
        assert writer.flush(30_000) == 0  # a neighbour in the same batch would share its fate
        writer.send(*narrow, b"fits")
        assert writer.flush(30_000) == 0
        assert writer.failures == 1

    assert [(each.topic, each.partition, each.key, len(each.value or b"")) for each in failed] == [
        (*narrow, b"k", 5_000)
    ]
    assert isinstance(failed[0].reason, UsageError)
    assert [(type(each), each.topic) for each in events] == [(AppendFailed, narrow.topic)]
    assert values_in(settings, narrow) == [b"fits"]


def test_a_partition_that_does_not_exist_is_named(settings: KafkaSettings, partition: TopicPartition) -> None:
    failed: list[Failed] = []
    absent = TopicPartition(partition.topic, 7)
    with Writer(settings, on_failure=failed.append) as writer, pytest.raises(NotFound, match=str(absent)):
        eventually(lambda: _sent_or_failed(writer, absent, failed))


def _sent_or_failed(writer: Writer, partition: TopicPartition, failed: list[Failed]) -> None:
    writer.send(*partition, b"x")
    writer.flush(100)
    if failed:
        raise failed[0].reason


def test_a_queue_that_stays_full_is_a_transient_error_in_bounded_time(
    penstock_broker: Any, partition: TopicPartition
) -> None:
    with FrameProxy(penstock_broker.bootstrap) as proxy:
        proxy.hold(Api.PRODUCE)
        small = settings_for(proxy.bootstrap, request_timeout="500ms", queue_buffering_max_messages="10")
        writer = Writer(small)
        for _ in range(10):
            writer.send(*partition, b"x")
        with pytest.raises(TransientError, match=r"queue full for 0\.5 s \(10 records wait"):
            writer.send(*partition, b"x")
        assert writer.close(timeout_ms=100) == 10
        assert writer.failures == 10


def test_a_full_queue_that_empties_is_waited_for(settings: KafkaSettings, partition: TopicPartition) -> None:
    small = settings_for(settings.bootstrap_servers, queue_buffering_max_messages="10")
    with Writer(small) as writer:
        for number in range(200):
            writer.send(*partition, str(number).encode())

    assert len(values_in(settings, partition)) == 200


def test_a_broker_that_is_away_is_named_and_logged_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[Failed] = []
    away = settings_for("127.0.0.1:1", message_timeout_ms="500")
    with caplog.at_level(logging.DEBUG, "penstock.kafka.client"):
        writer = Writer(away, on_failure=failed.append)
        writer.send("t", 0, b"x")
        eventually(lambda: writer.poll() or failed)
        writer.close()

    assert isinstance(failed[0].reason, BrokerUnavailable)
    assert "127.0.0.1:1" in str(failed[0].reason)
    assert "Connection refused" in caplog.text
    assert caplog.text.count("Connection refused") < 5, "the same line is not told again and again"
    assert capfd.readouterr() == ("", "")


def test_a_closed_writer_says_so(settings: KafkaSettings) -> None:
    writer = Writer(settings)
    assert writer.close() == 0
    assert writer.close() == 0
    with pytest.raises(UsageError, match="this Writer is closed"):
        writer.send("t", 0, b"x")
