"""Facts as bytes: an envelope around MessagePack.

    offset  0     2        3        7
            +-----+--------+--------+-----------------------------+
            | "Ps"| version| CRC-32 | MessagePack array: tag, ... |
            +-----+--------+--------+-----------------------------+

The CRC-32 (big endian) covers the version and the body. Whatever does not fit is junk, never an exception: anybody may
write to a Kafka topic. A sound envelope of a newer version is not junk: a reader must not pass it.

Fields may be added at the end of a record; readers that do not know them skip them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import ClassVar, Generic, TypeVar

import msgspec

MAGIC = b"Ps"
FIRST_VERSION = 1
"""The protocol version of whatever is encoded without a word about it."""
HEADER_BYTES = 7

_HEADER = struct.Struct(">2sBI")


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Record(msgspec.Struct, frozen=True, array_like=True, tag=snake_case):
    """A fact. Its tag in the log is its name in snake case, so a name is part of the protocol."""

    comes_back_equal: ClassVar[bool] = False
    """Whether nothing gets into it that we did not make or check ourselves: then it is the record in the bytes that
    are made of it. With a user's list for a tuple, or text for bytes, others would read something else.
    """


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Junk:
    """Bytes that are no fact."""

    reason: str


@dataclass(frozen=True, slots=True)
class Newer:
    """A sound envelope of a protocol version that we do not speak."""

    version: int


NULL = Junk("null value")
SHORT = Junk("shorter than an envelope")
MAGIC_WRONG = Junk("wrong magic")
CRC_WRONG = Junk("wrong checksum")
VERSION_ZERO = Junk("version 0")
SHAPE_WRONG = Junk("unknown type or shape")

_encoder = msgspec.msgpack.Encoder()
_encode = _encoder.encode
_pack_header = _HEADER.pack
_crc32 = zlib.crc32
# The checksum goes on from that of the version byte, so that the body need not be copied behind it.
_CRC_OF_VERSION = tuple(zlib.crc32(bytes((version,))) for version in range(256))


def encode(record: Record, version: int = FIRST_VERSION) -> bytes:
    body = _encode(record)
    return _pack_header(MAGIC, version, _crc32(body, _CRC_OF_VERSION[version])) + body


def enveloped(body: bytes, *, version: int = FIRST_VERSION) -> bytes:
    return _pack_header(MAGIC, version, _crc32(body, _CRC_OF_VERSION[version])) + body


def opened(value: bytes | None, *, speaks: int) -> tuple[int, bytes] | Junk | Newer:
    """The version and body of an envelope, if it is sound."""
    if value is None:
        return NULL
    if len(value) < HEADER_BYTES:
        return SHORT
    magic, version, crc = _HEADER.unpack_from(value)
    if magic != MAGIC:
        return MAGIC_WRONG
    body = value[HEADER_BYTES:]
    if _crc32(body, _CRC_OF_VERSION[version]) != crc:
        return CRC_WRONG
    if version > speaks:
        return Newer(version)
    if version == 0:
        return VERSION_ZERO
    return version, body


class Codec(Generic[R]):
    """Reads the facts of one machine."""

    def __init__(self, record_types: Sequence[type[R]], *, speaks: int) -> None:
        self.speaks = speaks
        self._decode = msgspec.msgpack.Decoder(reduce(or_, record_types)).decode

    def decode(self, value: bytes | None) -> tuple[int, R] | Junk | Newer:
        """The version and record in these bytes, or why there is none. Never raises."""
        envelope = opened(value, speaks=self.speaks)
        if not isinstance(envelope, tuple):
            return envelope
        version, body = envelope
        try:
            return version, self._decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return SHAPE_WRONG
