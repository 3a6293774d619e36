"""A record apart from those it was read with.

The client makes thousands of records at once, side by side in memory. One of them that outlives the others keeps a
whole page of theirs from being used again: a few messages that come again soon slow down the reading of all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.kafka.reader import Received


class RecordCopy(msgspec.Struct, eq=False, gc=False):
    """What its users ask of a record, and no more."""

    _topic: str
    _partition: int
    _offset: int
    _key: bytes | None
    _value: bytes | None
    _headers: list[tuple[str, bytes | None]] | None
    _timestamp: tuple[int, int]

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


def copied(record: Received) -> RecordCopy:
    """With bytes of its own."""
    key, value = record.key(), record.value()
    return RecordCopy(
        record.topic(),
        record.partition(),
        record.offset(),
        key and bytes(memoryview(key)),
        value and bytes(memoryview(value)),
        record.headers(),
        record.timestamp(),
    )
