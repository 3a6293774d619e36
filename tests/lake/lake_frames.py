"""Frames that look like Kafka's, and shapes of one table, for tests without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.lake.kafka_frame import KAFKA
from penstock.lake.options import LakeOptions
from penstock.lake.shape import Shape

AT = datetime(2026, 1, 31, 12, 30)


def options(**given: object) -> LakeOptions:
    return LakeOptions.read("orders", {"app_id": "orders", "topic": "orders", "table": "lake/orders", **given})


def frame(spark: SparkSession, values: Iterable[bytes | None], headers: Mapping[str, bytes] | None = None) -> DataFrame:
    carried = [Row(key=key, value=bytearray(value)) for key, value in (headers or {}).items()]
    rows = [
        (bytearray(b"k"), None if value is None else bytearray(value), "orders", 3, offset, AT, 0, carried)
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, KAFKA)


def ddl(text: str) -> T.StructType:
    return T.StructType.fromDDL(text)


def rows_of(shape: Shape, kafka: DataFrame) -> list[dict[str, Any]]:
    """Good rows by offset with their columns and `__error`; of bad ones the columns are null."""
    found = shape.shaped(kafka)
    landed = [F.when(F.col("__error").isNull(), F.col(f"`{name}`")).alias(name) for name in shape.columns.names]
    carried = ["__unlearned"] if shape.learns else []
    rows = found.select(*landed, "__offset", "__error", *carried).collect()
    return [row.asDict(recursive=True) for row in sorted(rows, key=lambda row: row["__offset"])]
