"""A message before it is sent: times, keys, limits, headers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.queue.headers import marks_of
from penstock.queue.outgoing import Outgoing, Prepared, Preparer, prepared, times_ms
from penstock.settings import SendSettings

NOW_MS = 1_000_000
LIMITS = SendSettings()


def of(value: Any = b"x", *, limits: SendSettings = LIMITS, queue: str | None = None, **said: Any) -> Prepared:
    return prepared(Outgoing(value, **said), limits=limits, queue=queue, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("said", "due_ms", "expires_ms"),
    [
        ({}, None, None),
        ({"delay": "10s"}, NOW_MS + 10_000, None),
        ({"delay": 1.5}, NOW_MS + 1_500, None),
        ({"delay": timedelta(days=3_650)}, NOW_MS + 315_360_000_000, None),
        ({"delay": 0}, None, None),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, 1_893_456_000_000, None),
        ({"at": datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))}, 1_893_456_000_000, None),
        ({"at": datetime.max.replace(tzinfo=UTC)}, 253_402_300_800_000, None),
        ({"at": 5}, 5_000, None),
        ({"at": 0}, 0, None),
        ({"ttl": "1m"}, None, NOW_MS + 60_000),
        ({"delay": "1h", "ttl": "1m"}, NOW_MS + 3_600_000, NOW_MS + 3_660_000),
        ({"at": 5, "ttl": "1m"}, 5_000, NOW_MS + 60_000),
    ],
)
def test_times_are_in_ms_since_1970_and_a_ttl_counts_from_when_it_is_due(
    said: dict[str, Any], due_ms: int | None, expires_ms: int | None
) -> None:
    marks = marks_of(of(**said).headers)

    assert (marks.due_ms, marks.expires_ms) == (due_ms, expires_ms)


@pytest.mark.parametrize(
    ("said", "objection"),
    [
        ({"delay": "1s", "at": 5}, "delay and at are two answers"),
        ({"delay": 0, "at": 5}, "delay and at are two answers"),
        ({"delay": -1}, "is not a duration"),
        ({"delay": "soon"}, "is not a duration"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),
        ({"at": "tomorrow"}, "'tomorrow' is no time"),
        ({"at": True}, "True is no time"),
        ({"at": float("nan")}, "nan is no time"),
        ({"at": float("inf")}, "inf is no time"),
        ({"at": -1}, "-1000 ms since 1970 is no time"),
        ({"at": 1e18}, "is no time"),
        ({"ttl": 0}, "with a ttl of 0 a message is never delivered"),
        ({"key": 7}, "key 7 is a int"),
        ({"key": "\ud800"}, "is no UTF-8"),
        ({"id": ""}, "message id '' is not allowed"),
        ({"headers": {"penstock-id": b"1"}}, "Penstock's own"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(said: dict[str, Any], objection: str) -> None:
    with pytest.raises(UsageError, match=objection):
        of(**said)


@pytest.mark.parametrize(
    ("said", "objection"),
    [
        ({"value": b"x" * 1_000_001}, "a payload of 1000001 bytes is larger than 1000000"),
        ({"value": "é" * 500_001}, "a payload of 1000002 bytes is larger than 1000000"),
        ({"key": "k" * 1_025}, "a key of 1025 bytes is longer than 1024"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_with_the_setting_that_sets_it(said: dict[str, Any], objection: str) -> None:
    with pytest.raises(UsageError, match=rf"{objection}; .*\[send\]"):
        of(**said)


def test_what_is_just_within_the_limits_goes() -> None:
    assert len(of(b"x" * 1_000_000, key="k" * 1_024).value or b"") == 1_000_000
    assert of(b"xx", limits=SendSettings(payload_max_bytes=2)).value == b"xx"


def test_a_plain_message_has_no_headers_and_json_says_that_it_is() -> None:
    assert of(b"x", key="k") == Prepared(b"x", b"k", [], None)
    assert of("x").headers == []
    assert of({"a": 1}).headers == [("content-type", b"application/json")]
    assert of({"a": 1}, headers={"Content-Type": "application/x+json"}).headers == [
        ("Content-Type", b"application/x+json")
    ]


def test_id_and_queue_come_before_a_users_own_headers() -> None:
    letter = of(b"x", id="order-1", queue="light", headers={"traceparent": "00-1"})

    assert letter.headers == [("penstock-id", b"order-1"), ("penstock-queue", b"light"), ("traceparent", b"00-1")]
    assert letter.id == "order-1"


def test_an_empty_key_is_a_key() -> None:
    assert of(b"x", key="").key == b""
    assert of(b"x", key=b"").key == b""


@pytest.mark.parametrize(
    "message",
    [
        Outgoing(b"x"),
        Outgoing({"a": 1}, key="k"),
        Outgoing(b"x", key="k", headers={"own": b"1"}),
        Outgoing(b"x", id="i"),
        Outgoing(b"x", delay="5s"),
        Outgoing(b"x", at=7),
        Outgoing(b"x", ttl="1h"),
        Outgoing(None, key=b""),
    ],
)
def test_one_of_many_is_prepared_like_one_alone_with_what_is_said_of_all(message: Outgoing) -> None:
    common = Outgoing(None, headers={"all": b"1"}, delay="1m", ttl="2m")
    is_timed = message.delay is not None or message.at is not None

    assert Preparer(common, limits=LIMITS, queue="q", now_ms=NOW_MS).prepare(message) == of(
        message.value,
        queue="q",
        key=message.key,
        headers=message.headers or common.headers,
        id=message.id,
        delay=message.delay if is_timed else common.delay,
        at=message.at,
        ttl=message.ttl or common.ttl,
    )


def test_a_mere_value_among_many_is_a_message_of_that_value() -> None:
    common = Outgoing(None, headers={"all": b"1"})
    preparer = Preparer(common, limits=LIMITS, queue=None, now_ms=NOW_MS)

    assert preparer.prepare([1]) == of([1], headers=common.headers)
    with pytest.raises(UsageError, match="a payload of 1000001 bytes"):
        preparer.prepare(b"x" * 1_000_001)


def test_a_delay_counts_from_the_clock_that_is_given() -> None:
    assert times_ms("1s", None, "1s", now_ms=7) == (1_007, 2_007)
