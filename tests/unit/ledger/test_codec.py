"""Facts as bytes: the format is a promise, and nothing that anybody writes into a topic may raise."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.codec import (
    CRC_WRONG,
    MAGIC_WRONG,
    NULL,
    SHAPE_WRONG,
    SHORT,
    Codec,
    Junk,
    Newer,
    Record,
    encode,
    enveloped,
)
from penstock.ledger.counter import Counter, CounterAdded, CounterFounded, CounterTaken
from penstock.ledger.machine import LEDGER_RECORDS, ClockReset, VersionRaised

CODEC: Codec[Record] = Codec((*LEDGER_RECORDS, *Counter.record_types), speaks=1)

GOLDEN = [
    (VersionRaised(2, "ann"), "5073011ca7e6d593ae76657273696f6e5f72616973656402a3616e6e"),
    (ClockReset("ann"), "507301d075002892ab636c6f636b5f7265736574a3616e6e"),
    (CounterFounded(30_000), "507301ea523dd792af636f756e7465725f666f756e646564cd7530"),
    (CounterTaken("worker-1"), "5073012c972d9092ad636f756e7465725f74616b656ea8776f726b65722d31"),
    (CounterAdded(2**40, 7), "50730158fa585793ad636f756e7465725f6164646564cf000001000000000007"),
]


@pytest.mark.parametrize(("record", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_a_record_has_the_bytes_it_always_had(record: Record, golden: str) -> None:
    assert encode(record).hex() == golden


@pytest.mark.parametrize(("record", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_of_old_are_read_as_the_record_they_were(record: Record, golden: str) -> None:
    assert CODEC.decode(bytes.fromhex(golden)) == (1, record)


@pytest.mark.parametrize(
    ("value", "junk"),
    [
        (None, NULL),
        (b"", SHORT),
        (b"Ps\x01\x00\x00\x00", SHORT),
        (b"XX" + encode(CounterTaken("w"))[2:], MAGIC_WRONG),
        (encode(CounterTaken("w"))[:-1] + b"X", CRC_WRONG),
        (encode(CounterTaken("w"))[:-1], CRC_WRONG),
        (enveloped(b""), SHAPE_WRONG),
        (enveloped(b"\xc1"), SHAPE_WRONG),
        (enveloped(msgspec.msgpack.encode(["no_such_record", 1])), SHAPE_WRONG),
        (enveloped(msgspec.msgpack.encode(["counter_taken"])), SHAPE_WRONG),
        (enveloped(msgspec.msgpack.encode(["counter_taken", 5])), SHAPE_WRONG),
        (enveloped(msgspec.msgpack.encode({"counter_taken": 5})), SHAPE_WRONG),
        (enveloped(b"\x92\xadcounter_taken\xa1\xff"), SHAPE_WRONG),  # not UTF-8
        (enveloped(b"\x93\xadcounter_taken\xa1w" + b"\x91" * 50_000), SHAPE_WRONG),  # nested without end
        (enveloped(msgspec.msgpack.encode(["counter_taken", "w"]) + b"more"), SHAPE_WRONG),
    ],
)
def test_what_is_no_fact_is_junk_with_a_reason(value: bytes | None, junk: Junk) -> None:
    assert CODEC.decode(value) == junk


def test_fields_added_at_the_end_are_skipped() -> None:
    later = enveloped(msgspec.msgpack.encode(["counter_taken", "w", {"added": "later"}, 5]))

    assert CODEC.decode(later) == (1, CounterTaken("w"))


def test_a_sound_envelope_of_a_newer_version_is_not_junk() -> None:
    assert CODEC.decode(enveloped(b"whatever comes", version=2)) == Newer(2)


def test_a_newer_version_with_a_wrong_checksum_is_junk() -> None:
    assert CODEC.decode(b"Ps\x02" + zlib.crc32(b"other").to_bytes(4, "big") + b"body") == CRC_WRONG


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(value: bytes) -> None:
    assert isinstance(CODEC.decode(value), Junk | Newer)


@given(st.binary(max_size=100), st.integers(0, 3))
def test_random_bodies_in_sound_envelopes_never_raise(body: bytes, version: int) -> None:
    decoded = CODEC.decode(enveloped(body, version=version))

    assert isinstance(decoded, Junk | Newer | tuple)
    assert isinstance(decoded, Newer) == (version > 1)


@given(st.data())
def test_a_single_changed_byte_never_raises_and_never_passes_unnoticed(data: st.DataObject) -> None:
    value = bytearray(encode(CounterAdded(123_456, 7)))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))

    assert isinstance(CODEC.decode(bytes(value)), Junk)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**63 - 1))
def test_what_was_encoded_is_decoded(epoch: int, number: int) -> None:
    assert CODEC.decode(encode(CounterAdded(epoch, number))) == (1, CounterAdded(epoch, number))
