"""The headers that Penstock puts on a message, and how they are written and read. docs/wire.md has them for others.

Reading is total: a header that makes no sense counts as absent, since anybody may write to a topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.errors import UsageError
from penstock.kafka.reader import Received
from penstock.queue.ids import place_id
from penstock.settings import SendSettings
from penstock.values import checked_name

RESERVED = "penstock-"

ID = "penstock-id"
QUEUE = "penstock-queue"
DUE = "penstock-due-ms"
EXPIRES = "penstock-expires-ms"

CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"

Given = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
"""Headers as users give them; a text goes as UTF-8."""

Wire = list[tuple[str, bytes | None]]

_TIME_MAX_MS = 2**63 - 1


class Marks(NamedTuple):
    """What Penstock's headers say of a message."""

    id: str | None = None
    queue: str | None = None
    due_ms: int | None = None
    expires_ms: int | None = None


NO_MARKS = Marks()


def written(marks: Marks) -> Iterator[tuple[str, bytes]]:
    if marks.id is not None:
        yield ID, marks.id.encode()
    if marks.queue is not None:
        yield QUEUE, marks.queue.encode()
    if marks.due_ms is not None:
        yield DUE, b"%d" % marks.due_ms
    if marks.expires_ms is not None:
        yield EXPIRES, b"%d" % marks.expires_ms


def marks_of(headers: Sequence[tuple[str, bytes | None]] | None) -> Marks:
    """Never raises. Where a name comes twice, the last one counts."""
    if not headers:
        return NO_MARKS
    found = {name: value for name, value in headers if value and name.startswith(RESERVED)}
    if not found:
        return NO_MARKS
    return Marks(
        id=found[ID].decode(errors="backslashreplace") if ID in found else None,
        queue=_name(found.get(QUEUE)),
        due_ms=_time(found.get(DUE)),
        expires_ms=_time(found.get(EXPIRES)),
    )


def message_id(record: Received) -> str:
    """The id in its header, or, where it came without one, that of its place."""
    return marks_of(record.headers()).id or place_id(record.topic(), record.partition(), record.offset())


def content_type_of(headers: Sequence[tuple[str, bytes | None]] | None) -> str | None:
    for name, value in reversed(headers or ()):
        if name.lower() == CONTENT_TYPE and value:
            return value.decode(errors="replace")
    return None


def checked_time_ms(time_ms: int) -> int:
    if not 0 <= time_ms <= _TIME_MAX_MS:
        raise UsageError(
            f"{time_ms} ms since 1970 is no time", next_step="give one between 1970 and the year 292278994"
        )
    return time_ms


def given_headers(given: Given | None, limits: SendSettings) -> Wire:
    """A user's own headers as they go on the wire.

    Raises UsageError for more than the limits allow, for reserved names, and for values that are neither text nor
    bytes.
    """
    if not given:
        return []
    pairs = given.items() if isinstance(given, Mapping) else given
    wire = [_checked(pair) for pair in pairs]
    if len(wire) > limits.headers_max:
        raise UsageError(
            f"{len(wire)} headers are more than {limits.headers_max}",
            next_step="put it into the payload, or raise headers_max in [send]",
        )
    size = sum(len(name.encode()) + len(value or b"") for name, value in wire)
    if size > limits.headers_max_bytes:
        raise UsageError(
            f"headers of {size} bytes are more than {limits.headers_max_bytes}",
            next_step="put it into the payload, or raise headers_max_bytes in [send]",
        )
    return wire


def _checked(pair: object) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UsageError(
            f"{pair!r:.80} is no header", next_step='give a mapping, or pairs of a name and a value: ("name", b"value")'
        )
    name, value = pair
    if not isinstance(name, str) or not name or not _is_utf8(name):
        raise UsageError(f"header name {name!r:.80} is not allowed", next_step="use a text that is not empty")
    if name.lower().startswith(RESERVED):
        raise UsageError(
            f"header {name} is Penstock's own", next_step=f"choose a name that does not begin with {RESERVED}"
        )
    if isinstance(value, str) and _is_utf8(value):
        return name, value.encode()
    if value is None or isinstance(value, bytes):
        return name, value
    raise UsageError(f"header {name} has the value {value!r:.80}", next_step="give text, bytes or None")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return checked_name("queue", value.decode())
    except (UnicodeDecodeError, UsageError):
        return None


def _time(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > 19:
        return None
    time_ms = int(value)
    return time_ms if time_ms <= _TIME_MAX_MS else None
