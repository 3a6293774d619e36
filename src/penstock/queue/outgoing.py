"""One message before it is sent: what the user said, checked, and as it goes on the wire."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from penstock.errors import UsageError
from penstock.queue.headers import CONTENT_TYPE, Given, Marks, Wire, checked_time_ms, given_headers, written
from penstock.queue.ids import checked_id
from penstock.queue.payload import encoded
from penstock.settings import SendSettings
from penstock.values import DurationLike, duration

When = datetime | int | float
"""A time with its zone, or seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One of many messages, with what is said of it alone."""

    value: Any
    key: str | bytes | None = None
    headers: Given | None = None
    id: str | None = None
    delay: DurationLike | None = None
    """Not before this time has passed since the send."""
    at: When | None = None
    """Not before this time."""
    ttl: DurationLike | None = None
    """Not later than this after it was due (at once, unless it is delayed)."""


class Prepared(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: Wire
    id: str | None


def prepared(message: Outgoing, *, limits: SendSettings, queue: str | None, now_ms: int) -> Prepared:
    """As it goes on the wire; `queue` is named only where it is not called like its topic.

    Raises UsageError for anything that may not be sent.
    """
    payload = encoded(message.value)
    checked_payload_size(0 if payload.value is None else len(payload.value), limits)
    due_ms, expires_ms = times_ms(message.delay, message.at, message.ttl, now_ms=now_ms)
    given_id = None if message.id is None else checked_id(message.id)
    own = given_headers(message.headers, limits)
    wire: Wire = [*written(Marks(given_id, queue, due_ms, expires_ms)), *own]
    if payload.content_type is not None and not any(name.lower() == CONTENT_TYPE for name, _ in own):
        wire.append((CONTENT_TYPE, payload.content_type.encode()))
    return Prepared(payload.value, checked_key(message.key, limits), wire, given_id)


class Preparer:
    """Prepares many messages at one time; what is said of all of them is checked and written once."""

    def __init__(self, common: Outgoing, *, limits: SendSettings, queue: str | None, now_ms: int) -> None:
        self._common, self._limits, self._queue, self._now_ms = common, limits, queue, now_ms
        self._headers = self._whole(replace(common, value=b"")).headers
        self._json_headers = self._whole(replace(common, value=0)).headers

    def prepare(self, given: Any) -> Prepared:
        """Of a value, or of an `Outgoing` with more to say. Raises UsageError."""
        if not isinstance(given, Outgoing):
            return self._usual(given, None)
        if _is_usual(given):
            return self._usual(given.value, checked_key(given.key, self._limits))
        is_timed = given.delay is not None or given.at is not None
        return self._whole(
            Outgoing(
                given.value,
                given.key,
                self._common.headers if given.headers is None else given.headers,
                given.id,
                given.delay if is_timed else self._common.delay,
                given.at if is_timed else self._common.at,
                self._common.ttl if given.ttl is None else given.ttl,
            )
        )

    def _usual(self, value: Any, key: bytes | None) -> Prepared:
        wire, content_type = encoded(value)
        if wire is not None and len(wire) > self._limits.payload_max_bytes:
            checked_payload_size(len(wire), self._limits)
        return Prepared(wire, key, self._headers if content_type is None else self._json_headers, None)

    def _whole(self, message: Outgoing) -> Prepared:
        return prepared(message, limits=self._limits, queue=self._queue, now_ms=self._now_ms)


def _is_usual(given: Outgoing) -> bool:
    said = (given.headers, given.id, given.delay, given.at, given.ttl)
    return said == (None, None, None, None, None)


def times_ms(
    delay: DurationLike | None, at: When | None, ttl: DurationLike | None, *, now_ms: int
) -> tuple[int | None, int | None]:
    """When a message is due, and when it is too late for it, in ms since 1970 by the clock that told `now_ms`."""
    if delay is not None and at is not None:
        raise UsageError("delay and at are two answers to one question", next_step="give one of them")
    due_ms = None
    if delay:
        due_ms = checked_time_ms(now_ms + duration(delay))
    elif at is not None:
        due_ms = checked_time_ms(_time_ms(at))
    if ttl is None:
        return due_ms, None
    if not duration(ttl):
        raise UsageError("with a ttl of 0 a message is never delivered", next_step="give a longer one, or none")
    # Counted from when it is due: otherwise a long delay would use it up.
    return due_ms, checked_time_ms(max(now_ms, due_ms or 0) + duration(ttl))


def checked_key(key: str | bytes | None, limits: SendSettings) -> bytes | None:
    if key is None:
        return None
    try:
        wire = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError as failure:
        raise UsageError(f"key {key!r:.80} is no UTF-8", next_step="give it as bytes") from failure
    if not isinstance(wire, bytes):
        raise UsageError(f"key {key!r:.80} is a {type(key).__name__}", next_step="give text or bytes")
    if len(wire) > limits.key_max_bytes:
        raise UsageError(
            f"a key of {len(wire)} bytes is longer than {limits.key_max_bytes}",
            next_step="use a shorter key, or raise key_max_bytes in [send]",
        )
    return wire


def checked_payload_size(size: int, limits: SendSettings) -> None:
    if size > limits.payload_max_bytes:
        raise UsageError(
            f"a payload of {size} bytes is larger than {limits.payload_max_bytes}",
            next_step="store it elsewhere and send where, or raise payload_max_bytes in [send] and the topic's"
            " max.message.bytes",
        )


def _time_ms(at: object) -> int:
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise UsageError(f"{at} has no time zone", next_step="give one: datetime(..., tzinfo=timezone.utc)")
        return round(at.timestamp() * 1_000)
    if isinstance(at, bool) or not isinstance(at, int | float) or at != at or abs(at) == float("inf"):
        raise UsageError(f"{at!r} is no time", next_step="give a datetime with its zone, or seconds since 1970")
    return round(at * 1_000)
