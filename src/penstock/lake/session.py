"""The Spark session of a lake: on one machine by default, on a cluster by its `master`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.broker.jars import Progress
from penstock.broker.java import java_home_for_spark
from penstock.errors import Unavailable
from penstock.lake.jars import lake_jars, replace_ours
from penstock.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_LINE = "4.0."

# An Avro message may claim a text of 2 GB: Java would make room for it before it looks, and die. Beyond these lengths
# the message is a bad one instead.
AVRO_LIMITS = {
    f"org.apache.avro.limits.{what}.maxLength": str(most)
    for what, most in (("bytes", 32 << 20), ("string", 32 << 20), ("collectionItems", 4 << 20))
}
_AVRO_OPTIONS = " ".join(f"-D{name}={most}" for name, most in AVRO_LIMITS.items())

_EXTENSIONS, _CATALOG = "spark.sql.extensions", "spark.sql.catalog.spark_catalog"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"

_ALWAYS = {
    _EXECUTOR_OPTIONS: _AVRO_OPTIONS,
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    _CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A time without a zone means the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # There is nothing to adapt: without a shuffle it only plans twice.
    "spark.sql.adaptive.enabled": "false",
    # Java never compiles a method larger than this, and one for a wide table may be: then Spark is to make small ones.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # A stream runs for months, and every batch is a handful of jobs: what is kept for the eye has small bounds.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedQueries": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.ui.showConsoleProgress": "false",
    # Our own stop decides what becomes of the batch under way; then the stream has this long to end.
    "spark.sql.streaming.stopTimeout": "60s",
    # Dedup forgets old ids with the next messages; a batch of nothing, for that alone, is not worth its cost.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Several streams share the cores fairly instead of one batch after the other.
    "spark.scheduler.mode": "FAIR",
}

_ALONE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}

_ON_ONE_MACHINE = {
    # Only dedup shuffles; its number of parts stays what it was when its checkpoint was made.
    "spark.sql.shuffle.partitions": "4",
    # The state of a table's log is small; the default of 50 tasks costs seconds for each look at it.
    "spark.databricks.delta.snapshotPartitions": "2",
}


# What no pipeline can do without, and a class that tells whether it is there.
_NEEDED = {
    "Delta": "io.delta.tables.DeltaTable",
    "Kafka": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Avro": "org.apache.spark.sql.avro.AvroDataToCatalyst",
}


def spark_session(settings: LakeSettings, *, progress: Progress | None = None) -> SparkSession:
    """A session with everything that a pipeline needs; one that already runs in this process is used as it is.

    Raises Unavailable when Spark, its jars or a Java for it are missing, or do not fit each other.
    """
    session_class = _spark()
    running: SparkSession | None = session_class.getActiveSession()
    if running is not None:
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_submitted():
        properties = _submitted(settings)
    else:
        properties = spark_properties(settings, progress=progress)
        os.environ["JAVA_HOME"] = str(java_home_for_spark())
    builder = session_class.builder.appName("penstock lake")
    for name, value in properties.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as failure:
        raise Unavailable(
            f"Spark did not start: {failure}", next_step="`penstock doctor --lake` says what fits"
        ) from failure
    if not settings.master.startswith("local") and not _is_submitted():
        _hand_out_packages(session)
    return session


def spark_properties(settings: LakeSettings, *, progress: Progress | None = None) -> dict[str, str]:
    """What the session is configured with; the user's own `[lake.spark]` properties win."""
    properties = dict(_ALWAYS)
    properties["spark.master"] = settings.master
    if settings.master.startswith("local"):
        properties |= _ALONE | _ON_ONE_MACHINE
    properties["spark.driver.memory"] = settings.driver_memory
    # Our tables have places of their own; by default Spark leaves a folder wherever it is started.
    properties["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir()) / "penstock-warehouse")
    quiet = f"-Dlog4j2.configurationFile={files('penstock.lake').joinpath('log4j2.properties')}"
    properties["spark.driver.extraJavaOptions"] = f"{quiet} {_AVRO_OPTIONS}"
    if settings.packages:
        properties["spark.jars.packages"] = ",".join(settings.packages)
    if not replace_ours(settings.packages):
        _check_line()
        properties["spark.jars"] = ",".join(str(path) for path in lake_jars(progress=progress))
    return {**properties, **settings.spark}


def beside_given(given: Mapping[str, str]) -> dict[str, str]:
    """Our properties beside those of a Spark that somebody else started: his win, but without Delta nothing works."""
    small = _ON_ONE_MACHINE if given.get("spark.master", "").startswith("local") else {}
    ours = {name: value for name, value in (_ALWAYS | small).items() if name not in given or name == _CATALOG}
    if _EXTENSIONS in given:
        theirs = [each for each in given[_EXTENSIONS].split(",") if each != _ALWAYS[_EXTENSIONS]]
        ours[_EXTENSIONS] = ",".join([*theirs, _ALWAYS[_EXTENSIONS]])
    if _EXECUTOR_OPTIONS in given:
        # Of two the last one counts for Java.
        ours[_EXECUTOR_OPTIONS] = f"{_AVRO_OPTIONS} {given[_EXECUTOR_OPTIONS]}"
    return ours


def _hand_out_packages(session: SparkSession) -> None:
    """Executors get the jars that `spark.jars` names, and ours hide there those that Spark resolved for the driver."""
    resolved: str = session._jvm.java.lang.System.getProperty("spark.jars") or ""
    named = set(session.sparkContext.getConf().get("spark.jars", "").split(","))
    for jar in resolved.split(","):
        if jar and jar not in named:
            session.sparkContext._jsc.sc().addJar(jar)


def _submitted(settings: LakeSettings) -> dict[str, str]:
    """What is left to set where spark-submit has chosen the master, the memory and the jars. Raises Unavailable."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    java = SparkContext._jvm.java.lang
    missing = [name for name, class_name in _NEEDED.items() if not _is_there(java, class_name)]
    if missing:
        raise Unavailable(
            f"spark-submit was given no jars of {' and '.join(missing)}",
            next_step="name them by --packages, or --jars $(python -m penstock.lake --jars)",
        )
    # Its Java runs already, too late for options; but Avro has not asked for these yet.
    for name, most in AVRO_LIMITS.items():
        if java.System.getProperty(name) is None:
            java.System.setProperty(name, most)
    return {**beside_given(dict(SparkConf().getAll())), **settings.spark}


def _is_there(java: Any, class_name: str) -> bool:
    with suppress(Exception):  # Java's ClassNotFoundException, in whatever the bridge wraps it
        java.Thread.currentThread().getContextClassLoader().loadClass(class_name)
        return True
    return False


def _spark() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as failure:
        raise Unavailable("Spark is not installed", next_step="pip install 'penstock[lake]'") from failure
    return SparkSession


def _check_line() -> None:
    import pyspark

    if not pyspark.__version__.startswith(SPARK_LINE):
        raise Unavailable(
            f"this is Spark {pyspark.__version__}, and our jars are for {SPARK_LINE}x",
            next_step="pip install 'penstock[lake]', or name the jars of your Spark's own line in [lake] packages",
        )


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ
