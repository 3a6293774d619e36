"""A record apart from those it was read with.

The client makes thousands of records at once, side by side in memory. One of them that outlives the others keeps a
whole page of theirs from being used again: a few messages that come again soon slow down the reading of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def copied(records: Sequence[Received]) -> list[RecordCopy]:
    """With bytes of their own. They are all of one type: so it takes hardly a step of Python for each."""
    kind = type(records[0])
    return list(
        map(
            RecordCopy,
            map(kind.topic, records),
            map(kind.partition, records),
            map(kind.offset, records),
            [key and bytes(memoryview(key)) for key in map(kind.key, records)],
            [value and bytes(memoryview(value)) for value in map(kind.value, records)],
            map(kind.headers, records),
            map(kind.timestamp, records),
        )
    )
