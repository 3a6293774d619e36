"""Schemas from messages: inferred once from a sample, grown by new fields, and what is unknown kept as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.errors import Refused
from penstock.lake.options import ORIGIN, RESCUED

COLUMNS_MAX = 1_000
SAMPLE_MAX = 1_000

# Delta's own rule for names of columns, and ours for service columns.
_NO_COLUMN = r"^$|^__|[ ,;{}()\n\t=]"


def inferred(messages: DataFrame) -> T.StructType:
    """The fields of these messages (`text`) with types that hold all of them; bad messages and nulls say nothing."""
    session, jvm = messages.sparkSession, messages.sparkSession._jvm
    texts = getattr(messages.select("text")._jdf, "as")(jvm.org.apache.spark.sql.Encoders.STRING())
    reader = session._jsparkSession.read().option("mode", "DROPMALFORMED").option("dropFieldIfAllNull", True)
    schema: T.StructType = T._parse_datatype_json_string(reader.json(texts).schema().json())
    return T.StructType(list(_possible_columns(schema.fields)))


def _possible_columns(fields: Iterable[T.StructField]) -> Iterable[T.StructField]:
    """Without those that no table can have: names that differ in case only, are ours, or that Delta refuses."""
    seen = {*ORIGIN, RESCUED}
    for field in fields:
        if field.name.lower() not in seen and not re.search(_NO_COLUMN, field.name):
            seen.add(field.name.lower())
            yield field


def grown(known: T.StructType, messages: DataFrame) -> T.StructType:
    """The known fields and those that these messages (`text`) have beside them.

    Raises Refused when that would be more columns than a table should have.
    """
    names = {field.name.lower() for field in known.fields}
    sample = messages.limit(SAMPLE_MAX)
    fields = [*known.fields, *(field for field in inferred(sample).fields if field.name.lower() not in names)]
    typed = {field.name.lower() for field in fields}
    # Lists of nothing and the like: there is something, but nothing says of what type.
    unseen = [F.lit(name) for name in typed]
    rest = sample.select(F.explode(F.map_keys(_new(F.col("text"), unseen))).alias("name")).distinct().collect()
    fields += _possible_columns(T.StructField(row["name"], T.StringType()) for row in rest)
    if len(fields) > COLUMNS_MAX:
        raise Refused(
            f"the messages have more than {COLUMNS_MAX} different fields",
            next_step='use schema = "rescue", which keeps unknown fields as JSON in one column',
        )
    return T.StructType(fields)


def has_new_fields(text: Column, known: T.StructType) -> Column:
    """Whether a message has a field that should become a column; the closer look is only taken if there is any."""
    names = [F.lit(field.name) for field in known.fields]
    lowered = [F.lit(field.name.lower()) for field in known.fields]
    stranger = F.size(F.array_except(F.json_object_keys(text), F.array(*names))) > 0
    return F.coalesce(F.when(stranger, F.size(_new(text, lowered)) > 0), F.lit(False))


def _new(text: Column, lowered: list[Column]) -> Column:
    """The fields that could be columns, are not among the known ones, and have a value."""

    def is_new(name: Column, value: Column) -> Column:
        has_value = ~F.is_variant_null(value) & ~F.to_json(value).isin("{}", "[]")
        return ~F.lower(name).isin(*lowered, *ORIGIN, RESCUED) & ~name.rlike(_NO_COLUMN) & has_value

    return F.map_filter(_fields(text), is_new)


def rescued(text: Column, known: T.StructType) -> Column:
    """The fields that are not known, as a JSON object; null where there are none."""
    names = [F.lit(field.name) for field in known.fields]
    stranger = F.size(F.array_except(F.json_object_keys(text), F.array(*names))) > 0
    return F.when(stranger, F.to_json(F.map_filter(_fields(text), lambda name, _: ~name.isin(*names))))


def _fields(text: Column) -> Column:
    return F.from_json(text, "map<string,variant>")
