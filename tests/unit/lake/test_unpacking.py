"""What runs on Spark's workers, without Spark: whatever bytes come, out come bytes or a reason, within the bound."""

from __future__ import annotations

import gzip
import zlib

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.unpacking import in_batches, unpacker

HEADER = b"Obj\x01\x04\x16avro.schema\x04{}\x14avro.codec\x0edeflate\x00" + bytes(16)


def container(datum: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(datum) + packer.flush()
    assert len(block) < 64
    return HEADER + bytes([2, 2 * len(block)]) + block + bytes(16)


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd", "detect"])
@given(value=st.binary(max_size=300))
def test_any_bytes_give_bytes_or_a_reason(kind: str, value: bytes) -> None:
    for contained in ("", "datum", "schema"):
        found = unpacker(kind, bytes_max=100, contained=contained)(value)  # type: ignore[arg-type]
        assert isinstance(found, bytes | str)
        assert isinstance(found, str) or len(found) <= 108


@given(at=st.integers(0, 200), to=st.integers(0, 255))
def test_a_damaged_container_gives_bytes_or_a_reason(at: int, to: int) -> None:
    whole = bytearray(container(b"datum"))
    whole[at % len(whole)] = to

    assert isinstance(unpacker("plain", bytes_max=1_000, contained="datum")(bytes(whole)), bytes | str)


@given(st.binary(max_size=500))
def test_what_was_packed_comes_out_as_it_was(value: bytes) -> None:
    packed = {"gzip": gzip.compress(value), "zstd": bytes(pyarrow.compress(value, "zstd", asbytes=True))}
    for kind, one in packed.items():
        assert unpacker(kind, bytes_max=500, contained="")(one) == value
        assert unpacker("detect", bytes_max=500, contained="")(one) == value


def test_a_container_gives_its_datum_behind_a_sign_of_its_schema_or_the_schema() -> None:
    found = unpacker("plain", bytes_max=1_000, contained="datum")(container(b"datum"))

    assert found[8:] == b"datum"
    assert unpacker("plain", bytes_max=1_000, contained="schema")(container(b"datum")) == b"{}"


def test_batches_that_grow_go_on_in_pieces_with_every_row_once() -> None:
    values = [gzip.compress(bytes(20_000_000)), None, gzip.compress(bytes(20_000_000)), b"not gzip"]
    batch = pyarrow.RecordBatch.from_pydict(
        {"__offset": [0, 1, 2, 3], "__value": pyarrow.array(values, pyarrow.binary())}
    )
    unpack = unpacker("gzip", bytes_max=30_000_000, contained="")

    pieces = list(in_batches(unpack)(iter([batch])))

    assert [piece.num_rows for piece in pieces] == [3, 1]
    rows = [row for piece in pieces for row in piece.to_pylist()]
    assert [row["__offset"] for row in rows] == [0, 1, 2, 3]
    assert [row["__payload_problem"] for row in rows] == [None, None, None, "not gzip, or damaged"]
    assert [row["__plain"] and len(row["__plain"]) for row in rows] == [20_000_000, None, 20_000_000, None]
