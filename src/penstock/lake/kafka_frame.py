"""What Spark's Kafka source gives, the service columns in which it travels with a row, and `kafka` in expressions."""

from __future__ import annotations

from collections.abc import Container

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

_HEADER = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])

KAFKA = T.StructType(
    [
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("timestampType", T.IntegerType()),
        T.StructField("headers", T.ArrayType(_HEADER)),
    ]
)

SERVICE = ("__topic", "__partition", "__offset", "__timestamp", "__key", "__value", "__headers")

_AS_THEY_ARE = ("timestamp", "topic", "partition", "offset")

IN_SCOPE = T.StructType(
    [
        T.StructField("key", T.StringType()),
        T.StructField("headers", T.MapType(T.StringType(), T.StringType())),
        *(KAFKA[name] for name in _AS_THEY_ARE),
    ]
)


def service_columns(there: Container[str]) -> list[Column]:
    """Kafka's columns as they travel with a row; headers are null unless the source was asked for them."""
    return [
        (F.col(name) if name in there else F.lit(None).cast(KAFKA[name].dataType)).alias(f"__{name}")
        for name in (service.removeprefix("__") for service in SERVICE)
    ]


def in_scope(*, with_headers: bool) -> Column:
    """What expressions know as `kafka`: the key and the headers as text, the rest as it is.

    The headers take Spark long to plan, so they are left out where nobody asks for them.
    """
    headers = _headers_by_name(F.col("__headers")) if with_headers else F.lit(None).cast(IN_SCOPE["headers"].dataType)
    return F.struct(
        F.col("__key").cast("string").alias("key"),
        headers.alias("headers"),
        *(F.col(f"__{name}").alias(name) for name in _AS_THEY_ARE),
    )


def _headers_by_name(headers: Column) -> Column:
    """A header may be there twice; the last one counts, and a map would not be made from both."""

    def is_last(one: Column, at: Column) -> Column:
        later = F.slice(headers, at + 2, F.size(headers))
        return ~F.exists(later, lambda other: other.getField("key") == one.getField("key"))

    texts = F.transform(
        F.filter(headers, is_last), lambda one: F.struct(one.getField("key"), one.getField("value").cast("string"))
    )
    return F.map_from_entries(texts)
