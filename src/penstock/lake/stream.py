"""Spark's stream: how it is begun, what it tells of its batches, and how it is ended without half a batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import Gap, PenstockError, TransientError
from penstock.lake.dedup import deduplicated, dropped_before
from penstock.lake.failures import causes, told_failure
from penstock.lake.offsets import Batch, Offsets, batch_of, from_json, to_json
from penstock.lake.options import LakeOptions
from penstock.lake.sizing import Sizing
from penstock.lake.source import source_options
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType


class _ToldElsewhere(logging.Filter):
    """What a batch raises is kept and told by the pipeline; py4j would print it, with its whole stack, as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "exception while executing the Python Proxy" not in record.getMessage()


logging.getLogger("py4j.clientserver").addFilter(_ToldElsewhere())

_LOG_S = 10.0
_LOOK_S = 0.02

OnBatch = Callable[["DataFrame", Batch, Offsets, Callable[[], "DataFrame | None"]], None]


# What a stream takes from the session when it begins must not be another's.
_BEGINNING = threading.Lock()


class Abandoned(TransientError):
    """The batch was given up before its commit, because the pipeline stops."""


class Stream:
    """One run of a streaming query."""

    def __init__(self, session: SparkSession, options: LakeOptions, kafka: KafkaSettings, on_batch: OnBatch) -> None:
        self._session, self._options, self._kafka = session, options, kafka
        self._on_batch = on_batch
        self._initial: dict[TopicPartition, int] | None = None
        self._query: StreamingQuery | None = None
        self._is_stopping = False
        self._idle = threading.Condition()
        self._is_busy = False
        self._landed: Offsets = {}
        """The ends of the last batch that is in the tables."""
        self.raised: BaseException | None = None
        """What landing a batch raised: by way of Java its type would be lost."""

    def start(self, starts: Offsets, sizing: Sizing, *, ids_of: StructType | None = None) -> None:
        """Begin at the checkpoint, if there is one, else at `starts`; with the schema `ids_of` of messages, dedup."""
        options = self._options
        reader = self._session.readStream.format("kafka").options(**_source(options, self._kafka))
        reader = reader.option("startingOffsets", to_json(starts))
        reader = reader.option("includeHeaders", str(_wants_headers(options)).lower())
        reader = reader.option("maxOffsetsPerTrigger", str(sizing.messages_max))
        if sizing.messages_min > 1 and not options.ends_at_latest_offsets:
            reader = reader.option("minOffsetsPerTrigger", str(sizing.messages_min))
            reader = reader.option("maxTriggerDelay", f"{int(options.allowed_latency)}ms")
        messages = reader.load()
        if ids_of is not None:
            messages = deduplicated(messages, options, ids_of)
        writer = messages.writeStream.queryName(options.name).foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", options.checkpoint_place)
        if options.ends_at_latest_offsets:
            writer = writer.trigger(availableNow=True)
        context = self._session.sparkContext
        with _BEGINNING:
            # Without a trigger a backlog goes from batch to batch with no pause; this is the pause when nothing waits.
            self._session.conf.set("spark.sql.streaming.pollingDelay", f"{sizing.look_every_ms}ms")
            # A pool of its own: with several streams none waits for another's long batch.
            context.setLocalProperty("spark.scheduler.pool", options.name)
            try:
                self._query = writer.start()
            except Exception as failure:
                raise told_failure(causes(_origin(failure)), failure, gap=lambda: None) from failure
            finally:
                context.setLocalProperty("spark.scheduler.pool", None)

    @property
    def run_id(self) -> str:
        return "" if self._query is None else str(self._query.runId)

    @property
    def is_active(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def failed(self, *, gap: Callable[[], Gap | None]) -> PenstockError | None:
        """What the stream ended with, if it was a failure."""
        found = self._java().exception()
        if not found.isDefined():
            return None
        # On its way through Java an exception of ours becomes a text; what it knew of Java's own is still there.
        origin = _origin(self.raised)
        if origin is None and self.raised is not None:
            chain = [(type(self.raised).__name__, str(self.raised))]
        else:
            chain = causes(origin if origin is not None else found.get())
        return told_failure(chain, self.raised, gap=gap)

    def logged(self) -> dict[TopicPartition, int]:
        """How far Spark's own log of commits is, as ends of partitions."""
        return _offsets(self._java().streamingQuery().committedOffsets())

    def ends_known(self) -> dict[TopicPartition, int]:
        """The ends of the partitions in Kafka, when Spark last looked."""
        return _offsets(self._java().streamingQuery().latestOffsets())

    def stop(self, grace_s: float) -> None:
        """End it between two batches if that is soon enough; else the batch under way is abandoned."""
        with self._idle:
            self._is_stopping = True
            self._idle.wait_for(lambda: not self._is_busy, timeout=grace_s)
        deadline = time.monotonic() + min(grace_s, _LOG_S)
        while self.is_active and not self._is_logged() and time.monotonic() < deadline:
            # A batch that is in the table and not in Spark's log would be read again, for nothing.
            time.sleep(_LOOK_S)
        if self._query is not None:
            self._query.stop()

    def _is_logged(self) -> bool:
        logged = self.logged()
        return all(logged.get(each, 0) >= end for each, end in self._landed.items())

    def _java(self) -> Any:
        assert self._query is not None
        return self._query._jsq

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._idle:
            if self._is_stopping:
                raise Abandoned("the pipeline stops")
            self._is_busy = True
        try:
            run = self._run()
            initial = self._began_at(run)
            before, ends = _offsets(run.committedOffsets()), _offsets(run.availableOffsets())
            batch = batch_of(batch_id, before=before, ends=ends, initial=initial)
            self._on_batch(frame, batch, initial, lambda: self._late(run, batch))
            self._landed = ends
        except BaseException as failure:
            self.raised = failure
            raise
        finally:
            with self._idle:
                self._is_busy = False
                self._idle.notify_all()

    def _late(self, run: Any, batch: Batch) -> DataFrame | None:
        """The messages of a batch that dedup left out as too old to be judged; to be asked when the batch was read."""
        if not self._options.dedup or (before_ms := dropped_before(run)) is None:
            return None
        from pyspark.sql import functions as F  # noqa: N812

        again = self._session.read.format("kafka").options(**_source(self._options, self._kafka))
        again = again.option("includeHeaders", str(_wants_headers(self._options)).lower())
        again = again.option("startingOffsets", to_json(batch.starts)).option("endingOffsets", to_json(batch.ends))
        return again.load().where(F.col("timestamp") <= F.timestamp_millis(F.lit(before_ms)))

    def _run(self) -> Any:
        query_id = self._session.sparkContext.getLocalProperty("sql.streaming.queryId")
        return self._session._jsparkSession.streams().get(query_id).streamingQuery()

    def _began_at(self, run: Any) -> Offsets:
        """Where the stream first began: Spark keeps that beside its checkpoint, and says it of no batch."""
        if self._initial is None:
            jvm: Any = self._session._jvm
            path = jvm.org.apache.hadoop.fs.Path(f"{run.resolvedCheckpointRoot()}/sources/0/0")
            content = path.getFileSystem(self._session._jsparkSession.sessionState().newHadoopConf()).open(path)
            try:
                text = jvm.org.apache.commons.io.IOUtils.toString(content, "UTF-8")
            finally:
                content.close()
            self._initial = from_json(text[text.index("{") :])
        return self._initial


def _origin(failure: BaseException | None) -> Any:
    """Java's own exception behind one of Python's."""
    return getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)


def sample_of(session: SparkSession, options: LakeOptions, kafka: KafkaSettings) -> DataFrame:
    """The topic as it is now, for a look at a few of its messages."""
    return session.read.format("kafka").options(**_source(options, kafka)).option("includeHeaders", "true").load()


def _source(options: LakeOptions, kafka: KafkaSettings) -> dict[str, str]:
    topics = (
        {"subscribePattern": options.topic.pattern}
        if options.topic.pattern
        else {"subscribe": ",".join(options.topic.names)}
    )
    return {**source_options(kafka, options.consumer), **topics}


def _wants_headers(options: LakeOptions) -> bool:
    """Reading them costs something for every message; dead letters keep them, expressions may ask for them."""
    several = (*options.transforms.values(), options.filter, *(each.condition for each in options.landings()))
    return bool(options.dead_letters) or any("headers" in text for text in several)


def _offsets(progress: Any) -> dict[TopicPartition, int]:
    """The offsets of the one source; none before the first batch."""
    return {} if progress.isEmpty() else from_json(progress.values().head().json())
