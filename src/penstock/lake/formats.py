"""How the value of a message is read: as JSON, text or bytes. One expensive column each, read once per message."""

from __future__ import annotations

import secrets
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.lake.learning import grown, has_new_fields

NULL_VALUE = "the value is null"
NOT_UTF8 = "the value is not UTF-8"


class Reading(Protocol):
    """What a format is to the shape: a column that is computed once, and what follows from it."""

    fields: T.StructType
    """What a message has, in the types in which it is read."""

    schema: T.StructType
    """The same as they were declared."""

    is_json: bool

    def parsed(self, value: Column) -> Column:
        """The expensive part."""

    def row(self, parsed: Column) -> Column:
        """The message's fields as a struct; null where there is none."""

    def problem(self, parsed: Column, value: Column) -> Column:
        """What is wrong with the message; null where nothing is."""

    def unlearned(self, parsed: Column, value: Column) -> Column | None:
        """Whether the message cannot be judged before something is looked up; None: that never happens."""

    def learned(self, messages: DataFrame) -> Reading:
        """The same reading, with what these messages (`value`) were waiting for."""


class Json:
    """One JSON object per message, in strict JSON, with nothing after it.

    Spark's parser stops at the end of the first value and would take `{"a":1} garbage`. So it is given the text as the
    first element of a list whose second element only we know: whatever does not leave exactly those two is no message.
    """

    is_json = True

    def __init__(self, schema: T.StructType, *, evolves: bool = False, framed: bool = False) -> None:
        self.schema, self._evolves, self._framed = schema, evolves, framed
        self.fields = T.StructType([T.StructField(f.name, _as_read(f.dataType)) for f in schema.fields])
        self._mark = f"_{secrets.token_hex(8)}"
        element = T.StructType([*self.fields.fields, T.StructField(self._mark, T.IntegerType())])
        self._corrupt = f"{self._mark}_corrupt"
        self._schema = T.StructType(
            [T.StructField(self._mark, T.ArrayType(element)), T.StructField(self._corrupt, T.StringType())]
        )

    def parsed(self, value: Column) -> Column:
        text = json_text(value, framed=self._framed)
        listed = F.concat(F.lit(f'{{"{self._mark}":['), text, F.lit(f',{{"{self._mark}":1}}]}}'))
        options = {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": self._corrupt,
            "allowSingleQuotes": "false",
            "allowNonNumericNumbers": "false",
        }
        return F.from_json(listed, self._schema, options)

    def row(self, parsed: Column) -> Column:
        return F.get(self._elements(parsed), F.lit(0))

    def _problem_of_form(self, parsed: Column) -> Column:
        elements = self._elements(parsed)
        is_alone = (F.size(elements) == 2) & (F.get(elements, F.lit(1)).getField(self._mark) == 1)
        return (
            F.when(elements.isNull(), "not one JSON object")
            .when(~F.coalesce(is_alone, F.lit(False)), "more text after the JSON object")
            .when(F.get(elements, F.lit(0)).isNull(), "null instead of a JSON object")
        )

    def problem(self, parsed: Column, value: Column) -> Column:
        text = json_text(value, framed=self._framed)
        first = F.when(value.isNull(), NULL_VALUE)
        if self._framed:
            first = first.when(F.substring(value, 1, 1) != F.lit(b"\x00"), "not JSON with a registry's frame")
        return F.coalesce(
            first.when(~F.is_valid_utf8(text), NOT_UTF8),
            self._problem_of_form(parsed),
            F.when(parsed.getField(self._corrupt).isNotNull(), self._wrong_types(parsed, text)),
        )

    def unlearned(self, parsed: Column, value: Column) -> Column | None:
        return has_new_fields(json_text(value, framed=self._framed), self.schema) if self._evolves else None

    def learned(self, messages: DataFrame) -> Json:
        texts = messages.select(json_text(F.col("value"), framed=self._framed).alias("text"))
        return Json(grown(self.schema, texts), evolves=self._evolves, framed=self._framed)

    def _elements(self, parsed: Column) -> Column:
        return parsed.getField(self._mark)

    def _wrong_types(self, parsed: Column, text: Column) -> Column:
        """Which fields: those that are there but were not read; one that is null may be among them."""
        there = F.json_object_keys(text)
        read = F.json_object_keys(F.to_json(self.row(parsed)))
        known = F.array(*(F.lit(field.name) for field in self.fields.fields))
        names = F.array_join(F.array_intersect(F.array_except(there, read), known), ", ")
        return F.concat(
            F.lit("wrong type, or out of bounds: "), F.coalesce(F.nullif(names, F.lit("")), F.lit("a nested field"))
        )


def json_text(value: Column, *, framed: bool) -> Column:
    """The text in a value; in a registry's frame it begins after a zero and four bytes."""
    return (F.substring(value, 6, 2**31 - 1) if framed else value).cast("string")


class _OneField:
    """The value as it is, in the field `value`."""

    is_json = False

    def __init__(self, kind: T.DataType) -> None:
        self.fields = self.schema = T.StructType([T.StructField("value", kind)])

    def parsed(self, value: Column) -> Column:
        return value.cast(self.fields["value"].dataType)

    def row(self, parsed: Column) -> Column:
        return F.struct(parsed.alias("value"))

    def problem(self, parsed: Column, value: Column) -> Column:
        return F.when(value.isNull(), NULL_VALUE)

    def unlearned(self, parsed: Column, value: Column) -> Column | None:
        return None

    def learned(self, messages: DataFrame) -> Reading:
        return self


class Bytes(_OneField):
    def __init__(self) -> None:
        super().__init__(T.BinaryType())


class Text(_OneField):
    def __init__(self) -> None:
        super().__init__(T.StringType())

    def problem(self, parsed: Column, value: Column) -> Column:
        return super().problem(parsed, value).when(~F.is_valid_utf8(parsed), NOT_UTF8)


def _as_read(kind: T.DataType) -> T.DataType:
    """The type in which a field is read: nullable throughout, for what is missing is judged later.

    Two types are not left to Spark's parser, which reads 200 as the TINYINT -56, and "12:30" as a time of today.
    """
    match kind:
        case T.ByteType():
            return T.ShortType()
        case T.TimestampType() | T.TimestampNTZType():
            return T.StringType()
        case T.StructType():
            return T.StructType([T.StructField(f.name, _as_read(f.dataType)) for f in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_as_read(kind.elementType))
        case T.MapType():
            return T.MapType(kind.keyType, _as_read(kind.valueType))
    return kind
