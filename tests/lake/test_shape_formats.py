"""Avro in all its frames, compressed payloads, text and bytes: what lands and what is bad, on a real Spark."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from lake_frames import ddl, frame, options, rows_of
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812
from registry_server import RegistryServer

from penstock.errors import ConfigError, NotFound, TransientError
from penstock.lake.avro import fingerprint, full_schema
from penstock.lake.registry import Registered
from penstock.lake.schemas import message_schema
from penstock.lake.shape import Shape

pytestmark = pytest.mark.spark

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
OLD = {"type": "record", "name": "Order", "fields": ORDER["fields"][:2]}  # type: ignore[index]
OTHER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
NO_SCHEMA = T.StructType([])


def number(value: int) -> bytes:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    found = bytearray()
    while zigzag > 0x7F:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*found, zigzag])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def old_order(id: int, name: str) -> bytes:
    return number(id) + text(name)


def order(id: int, name: str, *tags: str) -> bytes:
    listed = number(len(tags)) + b"".join(map(text, tags)) if tags else b""
    return old_order(id, name) + listed + number(0)


def container(schema: object, *data: bytes, codec: str = "null", packed: bytes | None = None) -> bytes:
    about = {"avro.schema": json.dumps(schema), "avro.codec": codec}
    header = number(len(about)) + b"".join(text(name) + text(value) for name, value in about.items()) + number(0)
    sync = bytes(range(16))
    block = b"".join(data) if packed is None else packed
    return b"Obj\x01" + header + sync + number(len(data)) + number(len(block)) + block + sync


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@pytest.fixture
def order_file(tmp_path: Path) -> str:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    return str(tmp_path / "order.avsc")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


BAD_AVRO = [
    order(1, "x", "a")[:-1],
    order(1, "x")[:1],
    b"",
    number(1) + number(-5) + b"x",
    # Lengths that are only claimed: nobody may try to make room for them.
    number(1) + number(2**31 - 20) + b"x",
    number(1) + number(2**40) + b"x",
    number(1) + text("x") + number(2**31 - 20),
    number(1) + text("x") + number(-(2**31)) + number(5),
]


def test_avro_with_a_schema_file_and_what_is_cut_off(spark: SparkSession, order_file: str) -> None:
    given = options(origin_columns=False, format="avro", schema_file=order_file, transforms={"first": "tags[0]"})
    schema = message_schema(given, sample=lambda: 1 / 0)
    rows = rows_of(Shape(given, schema), frame(spark, [order(1, "x", "a", "b"), *BAD_AVRO, None, order(2, "y")]))

    assert schema.simpleString() == "struct<id:bigint,name:string,tags:array<string>>"
    assert rows[0] == {"id": 1, "name": "x", "tags": ["a", "b"], "first": "a", "__offset": 0, "__error": None}
    assert {row["__error"] for row in rows[1 : 1 + len(BAD_AVRO)]} == {"not Avro of its schema, or cut off"}
    assert rows[-2]["__error"] == "the value is null"
    assert (rows[-1]["id"], rows[-1]["first"], rows[-1]["__error"]) == (2, None, None)


def test_avro_in_the_single_object_encoding(spark: SparkSession, order_file: str) -> None:
    frame_of_ours = b"\xc3\x01" + fingerprint(json.dumps(ORDER))
    shape = Shape(options(origin_columns=False, format="avro_single_object", schema_file=order_file), NO_SCHEMA)
    values = [frame_of_ours + order(1, "x"), b"\xc3\x01" + bytes(8) + order(1, "x"), order(1, "x"), frame_of_ours, b""]

    assert [(row["id"], row["__error"]) for row in rows_of(shape, frame(spark, values))] == [
        (1, None),
        (None, "unknown schema 0000000000000000"),
        (None, "not Avro in the single-object encoding"),
        (None, "not Avro of its schema, or cut off"),
        (None, "not Avro in the single-object encoding"),
    ]
    assert not shape.learns


def test_avro_of_a_registry_learns_each_writers_schema_once(spark: SparkSession, registry: RegistryServer) -> None:
    registry.register(1, OLD)
    registry.register(2, ORDER, subject="orders-value")
    registry.register(3, OTHER)
    given = options(origin_columns=False, format="avro_registry", registry=registry.address)

    def framed(schema_id: int, datum: bytes) -> bytes:
        return b"\x00" + schema_id.to_bytes(4, "big") + datum

    kafka = frame(
        spark,
        [
            framed(2, order(1, "new", "t")),
            framed(1, old_order(2, "old")),
            framed(3, text("x")),
            framed(99, b"x"),
            framed(4_000_000_000, b"x"),
            framed(2, order(1, "new")[:-1]),
            order(1, "bare"),
            b"\x00\x00",
            None,
        ],
    )
    first = Shape(given, NO_SCHEMA)
    assert first.learns
    assert [row["__unlearned"] for row in rows_of(first, kafka)] == [True] * 6 + [False] * 3

    second = first.learned(kafka)
    rows = rows_of(second, kafka)

    assert not any(row["__unlearned"] for row in rows)
    assert [(row["id"], row["name"], row["tags"]) for row in rows[:2]] == [(1, "new", ["t"]), (2, "old", [])]
    assert [row["__error"] for row in rows[2:]] == [
        "no fitting schema under 3",
        "no fitting schema under 99",
        "no fitting schema under 4000000000",
        "not Avro of its schema, or cut off",
        "not Avro with a registry's frame",
        "not Avro with a registry's frame",
        "the value is null",
    ]
    asked = [path for path, _ in registry.asked]
    assert len(asked) == len(set(asked))
    second.learned(frame(spark, [framed(1, b"")]))
    assert [path for path, _ in registry.asked] == asked, "what is known is not looked up again"


def test_a_registry_that_fails_stops_the_learning_and_makes_nothing_a_dead_letter(
    spark: SparkSession, registry: RegistryServer
) -> None:
    given = options(format="avro_registry", registry=registry.address)
    with pytest.raises(NotFound, match="orders-value"):
        Shape(given, NO_SCHEMA)
    registry.register(2, ORDER, subject="orders-value")
    shape = Shape(given, NO_SCHEMA)
    registry.answers["/schemas/ids/2"] = (503, b"")

    with pytest.raises(TransientError, match="answered 503"):
        shape.learned(frame(spark, [b"\x00\x00\x00\x00\x02" + order(1, "x")]))


def test_avro_containers_bring_their_own_schema(spark: SparkSession, order_file: str) -> None:
    given = options(origin_columns=False, format="avro_container", schema_file=order_file, payload_bytes_max=10_000)
    big = order(1, "x" * 20_000)
    good = container(OLD, old_order(2, "old"))
    kafka = frame(
        spark,
        [
            container(ORDER, order(1, "new")),
            good,
            container(ORDER, order(3, "d"), codec="deflate", packed=deflated(order(3, "d"))),
            container(ORDER, order(4, "z"), codec="zstandard", packed=pyarrow.compress(order(4, "z"), "zstd", True)),
            container(OTHER, text("x")),
            container(ORDER, order(1, "a"), order(2, "b")),
            container(ORDER, big, codec="deflate", packed=deflated(big)),
            container(ORDER, order(1, "x"), codec="deflate", packed=b"garbage"),
            container(ORDER, order(1, "x"), codec="rot13"),
            container("nonsense", b"x"),
            good[:-1],
            good[:30],
            b"Obj\x01" + number(2**60),
            b"nothing",
            b"",
            None,
        ],
    )
    shape = Shape(given, NO_SCHEMA).learned(kafka)
    rows = rows_of(shape, kafka)

    assert not any(row["__unlearned"] for row in rows)
    assert [(row["id"], row["name"]) for row in rows[:4]] == [(1, "new"), (2, "old"), (3, "d"), (4, "z")]
    errors = [row["__error"] for row in rows[4:]]
    assert errors[0].startswith("no fitting schema under ")
    assert errors[1:5] == [
        "an Avro container with 2 records, where a message is one",
        "the value has more than 10000 bytes",
        "a damaged Avro container",
        "an Avro container packed with rot13",
    ]
    assert errors[5].startswith("no fitting schema under ")
    assert errors[6:] == ["a damaged Avro container"] * 3 + ["not an Avro container"] * 2 + ["the value is null"]


def test_a_schema_that_is_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for written in ("{", '"string"', '{"type": "record", "name": "X"}', "[]"):
        (tmp_path / "x.avsc").write_text(written)
        with pytest.raises(ConfigError) as refused:
            Shape(options(format="avro", schema_file=str(tmp_path / "x.avsc")), NO_SCHEMA)
        assert refused.value.next_step


def test_references_become_a_part_of_the_schema(spark: SparkSession) -> None:
    inner = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    outer = {"type": "record", "name": "O", "fields": [{"name": "price", "type": "shop.Money"}]}

    assert "cents" in full_schema(Registered(json.dumps(outer), references=(json.dumps(inner),)))


BOMB = gzip.compress(b"0" * 50_000_000)


def test_packed_payloads_are_unpacked_within_bounds(spark: SparkSession) -> None:
    message = b'{"id": 1}'
    zstd = pyarrow.compress(message, "zstd", True)
    values = {
        "plain": message,
        "gzip": gzip.compress(message),
        "zstd": zstd,
        "null": None,
        "cut gzip": gzip.compress(message * 100)[:-20],
        "cut zstd": zstd[:-3],
        "bomb": BOMB,
        "zstd bomb": pyarrow.compress(b"0" * 50_000_000, "zstd", True),
        "empty": b"",
        "not JSON": gzip.compress(b"x"),
    }
    found = {}
    for payload in ("detect", "gzip"):
        shape = Shape(options(origin_columns=False, payload=payload, payload_bytes_max=1_000_000), ddl("id INT"))
        rows = rows_of(shape, frame(spark, list(values.values())))
        found[payload] = dict(zip(values, [row["__error"] or row["id"] for row in rows], strict=True))

    assert found["detect"] == {
        "plain": 1,
        "gzip": 1,
        "zstd": 1,
        "null": "the value is null",
        "cut gzip": "not gzip, or damaged",
        "cut zstd": "not zstd, or damaged",
        "bomb": "the value has more than 1000000 bytes",
        "zstd bomb": "the value has more than 1000000 bytes",
        "empty": "not one JSON object",
        "not JSON": "not one JSON object",
    }
    assert (found["gzip"]["gzip"], found["gzip"]["plain"]) == (1, "not gzip, or damaged")


def test_a_bad_payload_keeps_its_bytes_as_they_came(spark: SparkSession) -> None:
    shape = Shape(options(payload="gzip", payload_bytes_max=1_000), ddl("id INT"))
    (row,) = shape.shaped(frame(spark, [BOMB])).collect()

    assert bytes(row["__value"]) == BOMB


def test_text_and_bytes_are_one_column(spark: SparkSession) -> None:
    values = [b"hello", b"\xff\xfe", b"", None]
    text_rows = rows_of(Shape(options(origin_columns=False, format="text"), NO_SCHEMA), frame(spark, values))
    byte_rows = rows_of(
        Shape(options(format="bytes", transforms={"size": "length(value)"}), NO_SCHEMA), frame(spark, values)
    )

    assert [row["__error"] or row["value"] for row in text_rows] == [
        "hello",
        "the value is not UTF-8",
        "",
        "the value is null",
    ]
    assert [row["__error"] or bytes(row["value"]) for row in byte_rows] == [*values[:3], "the value is null"]
    assert byte_rows[0]["size"] == 5


def test_json_in_a_registrys_frame(spark: SparkSession) -> None:
    given = options(origin_columns=False, format="json_registry", registry="http://127.0.0.1:1", schema="rescue")
    rows = rows_of(
        Shape(given, ddl("id INT")), frame(spark, [b'\x00\x00\x00\x00\x05{"id": 1, "x": 2}', b'{"id": 1}', b"\x00"])
    )

    assert [(row["id"], row["_rescued"], row["__error"]) for row in rows] == [
        (1, '{"x":2}', None),
        (None, None, "not JSON with a registry's frame"),
        (None, None, "not one JSON object"),
    ]
