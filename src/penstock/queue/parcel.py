"""Records in one piece of memory, apart from those they were read with.

The client makes thousands of records at once, side by side in memory. One of them that outlives the others keeps a
whole page of theirs from being used again: a few messages that come again soon slow down the reading of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.kafka.reader import Received

Headers = list[tuple[str, bytes | None]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    tuple[list[int], list[bytes | None], list[bytes | None], list[Headers | None], list[tuple[int, int]]]
).decode


class RecordCopy(msgspec.Struct, eq=False, gc=False):
    """What its users ask of a record, and no more."""

    _topic: str
    _partition: int
    _offset: int
    _key: bytes | None
    _value: bytes | None
    _headers: Headers | None
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

    def headers(self) -> Headers | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


class Parcel(msgspec.Struct, eq=False, gc=False):
    """Records of one partition."""

    topic: str
    partition: int
    columns: bytes

    def unpacked(self) -> list[RecordCopy]:
        return list(map(RecordCopy, repeat(self.topic), repeat(self.partition), *_decode(self.columns)))


def parcel_of(records: Sequence[Received]) -> Parcel:
    """They are all of one type and one partition: so it takes hardly a step of Python for each."""
    first, kind = records[0], type(records[0])
    methods = kind.offset, kind.key, kind.value, kind.headers, kind.timestamp
    return Parcel(first.topic(), first.partition(), _encode([list(map(method, records)) for method in methods]))
