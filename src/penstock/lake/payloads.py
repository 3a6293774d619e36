"""Values that are packed as a whole, with gzip, zstd or as an Avro container: unpacked in Arrow batches, within bounds.

Spark has no function for it, so this is the one place where Python sees messages, and only in pipelines that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from penstock.errors import Unavailable
from penstock.lake.kafka_frame import service_columns
from penstock.lake.options import LakeOptions
from penstock.lake.unpacking import PLAIN, PROBLEM, Batches, in_batches, unpacker

if TYPE_CHECKING:
    from collections.abc import Callable

# Batches are bounded by records only: with messages of 1 MB this is 256 MB on its way to Python.
_RECORDS_PER_BATCH = 256


def unpacked(frame: DataFrame, options: LakeOptions) -> DataFrame:
    """Kafka's own frame; or with packed values its service columns, `__plain` and `__payload_problem`."""
    if not is_packed(options):
        return frame
    _check_pyarrow()
    return _in_arrow(frame.select(*service_columns(frame.columns)), in_batches(unpacker_of(options)))


def unpacked_value(options: LakeOptions) -> Column:
    """The value in an `unpacked` frame."""
    return F.col(PLAIN if is_packed(options) else "value")


def _in_arrow(served: DataFrame, unpack: Batches) -> DataFrame:
    """DataFrame.mapInArrow would do the same, but asks for pandas, which has no part in it."""
    served.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _RECORDS_PER_BATCH)
    added = [T.StructField(PLAIN, T.BinaryType()), T.StructField(PROBLEM, T.StringType())]
    function = UserDefinedFunction(
        unpack,
        returnType=T.StructType([*served.schema.fields, *added]),
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    called = function(*(served[name] for name in served.columns))
    return DataFrame(served._jdf.mapInArrow(called._jc, False, None), served.sparkSession)


def is_packed(options: LakeOptions) -> bool:
    return options.payload != "plain" or options.format == "avro_container"


def unpacker_of(options: LakeOptions, *, for_schema: bool = False) -> Callable[[bytes], bytes | str]:
    """`for_schema`: of a container, its schema instead of its datum."""
    is_container = options.format == "avro_container"
    return unpacker(
        options.payload,
        bytes_max=options.payload_bytes_max,
        contained="schema" if for_schema else "datum" if is_container else "",
    )


def _check_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as failure:
        raise Unavailable("packed payloads need pyarrow", next_step="pip install 'penstock[lake]'") from failure
