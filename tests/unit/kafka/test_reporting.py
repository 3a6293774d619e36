"""What is known of a record that failed, and the count of reports on many."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.errors import TransientError
from penstock.kafka.errors import may_have_happened
from penstock.kafka.reporting import Lost, OnReport, ReportingWriter, Tally, Unwritten
from penstock.settings import KafkaSettings
from penstock.values import duration


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN,
    ],
)
def test_what_may_come_after_an_append_leaves_a_doubt(code: int) -> None:
    assert may_have_happened(KafkaError(code))


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._PURGE_QUEUE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_a_refusal_before_the_append_leaves_none(code: int) -> None:
    assert not may_have_happened(KafkaError(code))


class Record:
    def partition(self) -> int:
        return 3

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


WHY = Unwritten(TransientError("late"), in_doubt=True)
ERROR: Any = KafkaError(KafkaError._MSG_TIMED_OUT)


def tally() -> Tally:
    return Tally(lambda error, partition, value: WHY)


def test_a_tally_is_complete_when_all_that_was_sent_is_reported() -> None:
    one = tally()
    one.expect(2)
    one.reported_unnumbered(None, Record())
    one.reported(0, None, Record())
    assert not one.is_complete.is_set(), "more might be sent"
    one.expect(1)
    one.close()
    assert not one.is_complete.is_set()
    one.reported(1, ERROR, Record())

    assert one.is_complete.is_set()
    assert one.lost == [Lost(1, 3, b"k", b"v", WHY)]


def test_a_tally_of_nothing_is_complete() -> None:
    one = tally()
    one.close()

    assert one.is_complete.is_set()


def test_what_was_refused_at_once_is_lost_without_a_doubt_and_without_a_report() -> None:
    one, full = tally(), TransientError("full")
    one.refused_all(2, [{"value": b"v"}, {"value": None, "key": b"k"}], full)
    one.refused(7, 1, None, b"x", full)
    one.close()

    assert one.is_complete.is_set()
    assert one.lost == [
        Lost(None, 2, None, b"v", Unwritten(full, in_doubt=False)),
        Lost(None, 2, b"k", None, Unwritten(full, in_doubt=False)),
        Lost(7, 1, None, b"x", Unwritten(full, in_doubt=False)),
    ]


@pytest.fixture
def nowhere() -> Iterator[ReportingWriter]:
    """Gives every record up soon: nobody answers there."""
    with ReportingWriter(KafkaSettings(bootstrap_servers="127.0.0.1:1"), timeout=duration("100ms")) as writer:
        yield writer


def send(writer: ReportingWriter, on_report: OnReport) -> None:
    writer.send("t", 0, b"v", key=None, headers=None, on_report=on_report)


def test_a_report_that_fails_takes_no_other_with_it(nowhere: ReportingWriter, caplog: pytest.LogCaptureFixture) -> None:
    heard = threading.Semaphore(0)

    def fail(offset: int | None, why: Unwritten | None) -> None:
        raise ValueError("what is this")

    for _ in range(2):
        send(nowhere, fail)
        send(nowhere, lambda offset, why: heard.release())
        assert heard.acquire(timeout=60)

    assert not nowhere.is_broken
    assert [record.getMessage() for record in caplog.records].count("a report on a record failed") == 2


def test_a_writer_that_is_closed_by_a_report_reports_the_others_after_it(nowhere: ReportingWriter) -> None:
    heard = threading.Semaphore(0)
    took_s: list[float] = []

    def close(offset: int | None, why: Unwritten | None) -> None:
        began_s = time.monotonic()
        nowhere.close(timeout_ms=60_000)
        took_s.append(time.monotonic() - began_s)

    send(nowhere, close)
    for _ in range(3):
        send(nowhere, lambda offset, why: heard.release())
    for _ in range(3):
        assert heard.acquire(timeout=60)

    nowhere._listener.join(60)
    assert not nowhere._listener.is_alive()
    assert took_s[0] < 30
