"""Avro: a bare datum, or one behind a frame that says which schema it was written with.

Whatever the frame is, reading is the same: the frame gives a key and the rest of the bytes, the key gives the writer's
schema, and Avro's own rules lead from there to the reader's schema, which never changes while a pipeline runs. Writers
that are not known yet are learned; a message whose schema nobody knows, or that does not lead to ours, is a bad one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.errors import ConfigError, Refused
from penstock.lake.formats import NULL_VALUE
from penstock.lake.registry import Registered, Registry

# Each writer's schema is a branch of one expression; nobody has so many, but a topic full of noise may.
WRITERS_MAX = 200

Key = int | bytes
# From messages (`key`, `raw`) to the schemas of their keys in full; None: there is none.
Find = Callable[[DataFrame], Mapping[Key, str | None]]


@dataclass(frozen=True)
class Frame:
    """What stands before the datum."""

    name: str
    is_framed: Callable[[Column], Column]
    key: Callable[[Column], Column]
    datum: Callable[[Column], Column]


BARE = Frame("Avro", lambda _: F.lit(True), lambda _: F.lit(0), lambda value: value)

# 0, then the schema's number in four bytes.
REGISTRY = Frame(
    "Avro with a registry's frame",
    lambda value: (F.octet_length(value) >= 5) & (F.substring(value, 1, 1) == F.lit(b"\x00")),
    lambda value: F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).try_cast("bigint"),
    lambda value: F.substring(value, 6, 2**31 - 1),
)

# C3 01, then the fingerprint of the schema in eight bytes.
SINGLE_OBJECT = Frame(
    "Avro in the single-object encoding",
    lambda value: (F.octet_length(value) >= 10) & (F.substring(value, 1, 2) == F.lit(b"\xc3\x01")),
    lambda value: F.substring(value, 3, 8),
    lambda value: F.substring(value, 11, 2**31 - 1),
)

# What `payloads` makes of a container: a fingerprint of the schema's text, and the datum.
CONTAINED = Frame(
    "an Avro container with one record",
    lambda value: F.octet_length(value) >= 8,
    lambda value: F.substring(value, 1, 8),
    lambda value: F.substring(value, 9, 2**31 - 1),
)


class Avro:
    """One Avro record per message.

    Of a record that cannot be read Spark makes a row of nulls, like one that has nothing but nulls. So the reader's
    schema has one field more, with a default: it has a value in every record that was read to its end.
    """

    is_json = False

    def __init__(
        self,
        frame: Frame,
        reader: str,
        writers: Mapping[Key, str | None],
        find: Find | None = None,
    ) -> None:
        self._frame, self._reader, self._find = frame, reader, find
        self._mark = f"_{secrets.token_hex(8)}"
        self._known = dict(writers)
        self._writers = {key: text for key, text in writers.items() if text and _leads_to(text, reader)}
        self.fields = self.schema = _fields(reader)

    def parsed(self, value: Column) -> Column:
        from pyspark.sql.avro.functions import from_avro

        datum, key = self._frame.datum(value), self._frame.key(value)
        options = {"mode": "PERMISSIVE", "avroSchema": _marked(self._reader, self._mark)}
        read = F.lit(None).cast(T.StructType([*self.fields.fields, T.StructField(self._mark, T.IntegerType())]))
        for known, text in self._writers.items():
            read = F.when(key == F.lit(known), from_avro(datum, text, options)).otherwise(read)
        return F.when(self._frame.is_framed(value), read)

    def row(self, parsed: Column) -> Column:
        return parsed

    def problem(self, parsed: Column, value: Column) -> Column:
        key = self._frame.key(value)
        shown = key.cast("string") if self._frame is REGISTRY else F.hex(key)
        return (
            F.when(value.isNull(), NULL_VALUE)
            .when(parsed.getField(self._mark).isNotNull(), F.lit(None).cast("string"))
            .when(~self._frame.is_framed(value), f"not {self._frame.name}")
            .when(self._is_one_of(key, self._writers), "not Avro of its schema, or cut off")
            .when(self._is_one_of(key, self._known), F.concat(F.lit("no fitting schema under "), shown))
            .otherwise(F.concat(F.lit("unknown schema "), shown))
        )

    def unlearned(self, parsed: Column, value: Column) -> Column | None:
        if self._find is None:
            return None
        key = self._frame.key(value)
        known = self._is_one_of(key, self._known)
        return F.coalesce(value.isNotNull() & self._frame.is_framed(value) & ~known, F.lit(False))

    def learned(self, messages: DataFrame) -> Avro:
        if self._find is None:
            return self
        keyed = messages.select(self._frame.key(F.col("value")).alias("key"), "raw")
        writers = {**self._known, **self._find(keyed)}
        if len(writers) > WRITERS_MAX:
            raise Refused(
                f"the messages name more than {WRITERS_MAX} schemas",
                next_step="see whether the topic really holds " + self._frame.name,
            )
        return Avro(self._frame, self._reader, writers, self._find)

    def _is_one_of(self, key: Column, keys: Iterable[Key]) -> Column:
        several = [F.lit(one) for one in keys]
        return F.coalesce(key.isin(*several), F.lit(False)) if several else F.lit(False)


def avro_of_file(frame: Frame, text: str) -> Avro:
    """For datums that were written with this very schema."""
    reader = full_schema(Registered(text))
    key: Key = fingerprint(reader) if frame is SINGLE_OBJECT else 0
    return Avro(frame, reader, {key: reader})


def avro_of_registry(registry: Registry, reader: Registered) -> Avro:
    """For datums that name the number under which their schema is registered."""

    def find(messages: DataFrame) -> Mapping[Key, str | None]:
        rows = messages.select("key").distinct().limit(WRITERS_MAX + 1).collect()
        found = {row["key"]: registry.by_id(row["key"]) for row in rows}
        return {key: _schema_or_none(one) if one and one.kind == "AVRO" else None for key, one in found.items()}

    return Avro(REGISTRY, full_schema(reader), {}, find)


def avro_of_containers(reader: Registered, schema_of: Callable[[bytes], bytes | str]) -> Avro:
    """For files with one record each, which carry their schema; `schema_of` takes it out of one."""

    def find(messages: DataFrame) -> Mapping[Key, str | None]:
        one_each = messages.groupBy("key").agg(F.first("raw").alias("raw")).limit(WRITERS_MAX + 1).collect()
        found = {bytes(row["key"]): schema_of(bytes(row["raw"])) for row in one_each}
        return {key: _schema_or_none(Registered(one.decode())) for key, one in found.items() if isinstance(one, bytes)}

    return Avro(CONTAINED, full_schema(reader), {}, find)


def _schema_or_none(registered: Registered) -> str | None:
    try:
        return full_schema(registered)
    except ConfigError:
        return None


def full_schema(registered: Registered) -> str:
    """The schema with everything that it refers to inside it, as Avro itself writes it.

    Raises ConfigError when it is none.
    """
    parser = _jvm().org.apache.avro.Schema.Parser()
    try:
        for reference in registered.references:
            parser.parse(reference)
        text: str = parser.parse(registered.text).toString()
    except Exception as failure:  # noqa: BLE001 - the parser throws whatever it finds
        reason = str(getattr(failure, "java_exception", failure)).splitlines()[0]
        raise ConfigError(f"not an Avro schema: {reason}", next_step="correct it, or name another") from None
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("type") != "record":
        raise ConfigError("the Avro schema is no record", next_step="a message becomes a row: use a record with fields")
    return text


def fingerprint(text: str) -> bytes:
    """What stands in a single-object frame for this schema."""
    jvm = _jvm()
    schema = jvm.org.apache.avro.Schema.Parser().parse(text)
    number: int = jvm.org.apache.avro.SchemaNormalization.parsingFingerprint64(schema)
    return number.to_bytes(8, "little", signed=True)


def _marked(reader: str, mark: str) -> str:
    document = json.loads(reader)
    return json.dumps({**document, "fields": [*document["fields"], {"name": mark, "type": "int", "default": 1}]})


def _leads_to(writer: str, reader: str) -> bool:
    """Whether what the one wrote can be read as the other, by Avro's own rules."""
    jvm = _jvm()
    both = [jvm.org.apache.avro.Schema.Parser().parse(text) for text in (reader, writer)]
    verdict = jvm.org.apache.avro.SchemaCompatibility.checkReaderWriterCompatibility(*both)
    return str(verdict.getType().toString()) == "COMPATIBLE"


def _fields(reader: str) -> T.StructType:
    from pyspark.sql.avro.functions import from_avro

    empty = SparkSession.active().createDataFrame([], "value BINARY")
    read = empty.select(from_avro(F.col("value"), reader, {"mode": "PERMISSIVE"}).alias("read"))
    fields: T.StructType = read.schema["read"].dataType
    return fields


def _jvm() -> Any:
    return SparkSession.active()._jvm
