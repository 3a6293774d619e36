"""What runs on Spark's Python workers: values out of gzip, zstd and Avro containers, never more than a bound.

The functions are made here and travel to the workers by value, so whatever they need is inside them: a worker has
pyarrow, but need not have Penstock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow

PLAIN, PROBLEM = "__plain", "__payload_problem"

_BYTES_PER_BATCH = 32 * 1024 * 1024

Unpack = Callable[[bytes], bytes | str]
Batches = Callable[[Iterator["pyarrow.RecordBatch"]], Iterator["pyarrow.RecordBatch"]]


def in_batches(unpack: Unpack) -> Batches:
    """Adds to every batch what `unpack` makes of `__value`: the bytes, or what is wrong with them."""
    bytes_per_batch = _BYTES_PER_BATCH

    def batches(given: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in given:
            yield from pieces(batch)

    def pieces(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
        """A small batch may become a large one: it goes on in pieces."""
        start, size = 0, 0
        found: list[bytes | str | None] = []
        for value in batch.column(batch.schema.get_field_index("__value")):
            raw = value.as_py()
            found.append(None if raw is None else unpack(raw))
            size += len(found[-1] or b"")
            if size >= bytes_per_batch:
                yield widened(batch.slice(start, len(found)), found)
                start, size, found = start + len(found), 0, []
        yield widened(batch.slice(start, len(found)), found)

    def widened(batch: pyarrow.RecordBatch, found: list[bytes | str | None]) -> pyarrow.RecordBatch:
        import pyarrow

        plain = pyarrow.array([one if isinstance(one, bytes) else None for one in found], pyarrow.binary())
        problem = pyarrow.array([one if isinstance(one, str) else None for one in found], pyarrow.string())
        names = [*batch.schema.names, "__plain", "__payload_problem"]
        return pyarrow.RecordBatch.from_arrays([*batch.columns, plain, problem], names=names)

    return batches


def unpacker(payload: str, *, bytes_max: int, contained: Literal["", "datum", "schema"]) -> Unpack:
    """A function from a value to what is in it, or to a text that says what is wrong.

    A container gives eight bytes that stand for its schema, and the datum; or else its schema.
    """

    def unpack(value: bytes) -> bytes | str:
        kind = payload
        if payload == "detect":
            kind = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(value[:2], "plain")
        try:
            found = value if kind == "plain" else inflated(value, kind)
        except (OSError, ValueError):
            return f"not {kind}, or damaged"
        if len(found) > bytes_max:
            return f"the value has more than {bytes_max} bytes"
        return opened(found) if contained else found

    def inflated(value: bytes, kind: str) -> bytes:
        """At most one byte more than allowed."""
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.BufferReader(value), kind) as stream:
            found: bytes = stream.read(bytes_max + 1)
            return found

    def opened(file: bytes) -> bytes | str:
        if file[:4] != b"Obj\x01":
            return "not an Avro container"
        try:
            return record(file)
        except (IndexError, OSError, ValueError):
            return "a damaged Avro container"

    def record(file: bytes) -> bytes | str:
        import hashlib

        about, at = header(file)
        schema, codec = about.get(b"avro.schema", b""), about.get(b"avro.codec", b"null").decode()
        if contained == "schema":
            return schema
        sync, at = file[at : at + 16], at + 16
        count, at = number(file, at)
        size, at = number(file, at)
        if count != 1:
            return f"an Avro container with {count} records, where a message is one"
        if at + size + 16 != len(file) or file[at + size :] != sync:
            raise ValueError
        datum = decoded(file[at : at + size], codec)
        return datum if isinstance(datum, str) else hashlib.sha256(schema).digest()[:8] + datum

    def header(file: bytes) -> tuple[dict[bytes, bytes], int]:
        about: dict[bytes, bytes] = {}
        count, at = number(file, 4)
        while count:
            if count < 0:
                _, at = number(file, at)
            for _ in range(abs(count)):
                name, at = text(file, at)
                about[name], at = text(file, at)
            count, at = number(file, at)
        return about, at

    def text(file: bytes, at: int) -> tuple[bytes, int]:
        size, at = number(file, at)
        if not 0 <= size <= len(file) - at:
            raise ValueError
        return file[at : at + size], at + size

    def number(file: bytes, at: int) -> tuple[int, int]:
        """Avro's zigzag numbers."""
        found, shift = 0, 0
        while True:
            found |= (file[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if file[at - 1] < 0x80:
                return (found >> 1) ^ -(found & 1), at
            if shift > 63:
                raise ValueError

    def decoded(block: bytes, codec: str) -> bytes | str:
        import zlib

        match codec:
            case "null":
                return block
            case "deflate":
                try:
                    found = zlib.decompressobj(-15).decompress(block, bytes_max + 1)
                except zlib.error:
                    raise ValueError from None
            case "zstandard":
                found = inflated(block, "zstd")
            case "bzip2":
                found = inflated(block, "bz2")
            case _:
                return f"an Avro container packed with {codec}"
        return found if len(found) <= bytes_max else f"the value has more than {bytes_max} bytes"

    return unpack
