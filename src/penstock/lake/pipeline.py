"""One pipeline: a stream from Kafka into its tables, from start to stop.

    pipeline = Pipeline(options, settings)
    pipeline.start()        # takes the locks of the pipeline; returns when the stream runs
    pipeline.progress       # rows, versions, offsets, lag: a frozen picture
    pipeline.stop()         # the batch under way is finished, or abandoned; never half
    pipeline.failure        # what ended it, if something did

The stream is Spark's. A thread of ours watches it: it shows the offsets to lag tools, begins the stream again after
something that passes, and says why it ended. While it runs it holds the locks that `penstock lake run` takes too.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from penstock.crash import crash_point
from penstock.errors import Gap, NotAcquired, PenstockError, StreamFailed, UsageError
from penstock.kafka.topics import Admin
from penstock.lake.dedup import remembering
from penstock.lake.group_offsets import GroupOffsets
from penstock.lake.landing import Landed, Landing, Late, Target
from penstock.lake.locks import Held, LockLost, locks_of, locks_of_process
from penstock.lake.offsets import Batch, Offsets
from penstock.lake.options import LakeOptions
from penstock.lake.preparing import make_dead_letters, make_table, naming_of, start_of
from penstock.lake.session import spark_session
from penstock.lake.sink import Table
from penstock.lake.sizing import Sizing, has_outgrown, sizing
from penstock.lake.stream import Stream, sample_of
from penstock.observe import tell
from penstock.observe.events import LakeBatchesResized, LakeStreamRestarted
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

GRACE_S = 30.0

_LOOK_S = 0.2
_ENDS_S = 1.0
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)

Transform = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pipeline is; every number counts from its start."""

    batches: int = 0
    rows: int = 0
    bad: int = 0
    bytes: int = 0
    files: int = 0
    version: int = -1
    """The newest version of the table (with routes: of the last one) that we committed; -1 before the first batch."""
    stored: Offsets = field(default_factory=dict)
    """The last offset that is dealt with, by partition."""
    ends: Offsets = field(default_factory=dict)
    """One past the last message that Spark knew of in Kafka, by partition."""
    landed_at: float = 0.0
    """`time.time()` of the last commit; 0 before the first."""
    seconds: float = 0.0
    """How long the last batch took to land."""

    def after(self, landed: Landed) -> Progress:
        """The same after one more batch."""
        higher = {each: end - 1 for each, end in landed.batch.ends.items() if end - 1 > self.stored.get(each, -1)}
        return replace(
            self,
            batches=self.batches + 1,
            rows=self.rows + landed.rows,
            bad=self.bad + landed.bad,
            bytes=self.bytes + landed.bytes,
            files=self.files + landed.files,
            version=landed.versions[-1] if landed.versions else self.version,
            stored={**self.stored, **higher},
            landed_at=time.time(),
            seconds=landed.seconds,
        )

    @property
    def lag(self) -> int:
        """Messages that are in Kafka and not in the table, as far as Spark knew when it last looked."""
        return sum(max(0, end - 1 - self.stored.get(each, -1)) for each, end in self.ends.items())


class Pipeline:
    """Lands the messages of its topics in its tables, exactly once, until it is stopped or fails."""

    def __init__(
        self,
        options: LakeOptions | Mapping[str, object],
        settings: Settings,
        *,
        session: SparkSession | None = None,
        transform: Transform | None = None,
        schema: StructType | None = None,
        lock: bool = True,
        standby: bool = False,
    ) -> None:
        """Options as an object, or as a mapping as in `[lake.NAME]`. Nothing is touched before `start`.

        Without a `session` one is made from `settings.lake`, and shared by all pipelines of the process.
        `transform` changes the rows as a DataFrame; `schema` is what a message has, where the options do not say it.
        A `standby` waits while another process has the locks. Who had them and lost them waits to have them back.
        Without a `lock` only the table's own offsets keep two writers apart.
        """
        if standby and not lock:
            raise UsageError("a standby without a lock has nothing to wait for", next_step="leave one of the two out")
        if not isinstance(options, LakeOptions):
            given = dict(options)
            options = LakeOptions.read(
                str(given.pop("name", given.get("app_id", ""))), given, folder=settings.lake.folder
            )
        self.options = options
        self._settings = settings
        self._given_session, self._transform, self._schema = session, transform, schema
        self._takes_locks, self._standby = lock, standby
        self._held = Held([])
        self._giving_back = ExitStack()
        self._progress = Progress()
        # Spark's thread counts what landed, ours how far Kafka is.
        self._counting = threading.Lock()
        self._ends_at = 0.0
        self._failure: PenstockError | None = None
        self._stopping = threading.Event()
        self._grace_s = GRACE_S
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def failure(self) -> PenstockError | None:
        """What ended the pipeline, if it was not `stop`, or the end of the topic that was asked for."""
        return self._failure

    @property
    def run_id(self) -> str:
        """Spark's name for the stream as it runs now: the group of its jobs."""
        return self._stream.run_id

    @property
    def is_running(self) -> bool:
        return self._thread is not None and not self._ended.is_set()

    def start(self, *, held: Held | None = None) -> Self:
        """Take the locks, make or check the tables, and begin; returns when the stream runs.

        `held` are locks that somebody else took for it, and gives back when it has ended.
        Raises NotAcquired when another process has a lock, or when a standby is stopped before it has it; Unavailable
        without Spark, ConfigError, NotFound without topic, BrokerUnavailable, Gap, Restored, Fenced.
        """
        if self._thread is not None:
            raise UsageError("this pipeline was started before", next_step="make a new one")
        # Before the locks: a standby is then ready at once.
        self._session = self._given_session or spark_session(self._settings.lake)
        if held is not None:
            self._takes_locks, self._held = False, held
        elif self._takes_locks:
            self._hold(is_standby=self._standby)
        self._admin = Admin(self._settings.kafka)
        try:
            self._landing = self._prepared()
            self._group = GroupOffsets(self._admin, self.options.group)
            self._begin()
        except BaseException:
            self._admin.close()
            self._giving_back.close()
            raise
        self._thread = threading.Thread(target=self._watch, name=f"lake-{self.options.name}", daemon=True)
        self._thread.start()
        return self

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Finish the batch under way if it takes no longer than `grace_s`, else abandon it; then end. Idempotent."""
        self._grace_s = grace_s
        self._stopping.set()
        self.wait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, within this time."""
        return self._thread is None or self._ended.wait(timeout_s)

    def run(self) -> None:
        """Start, wait until it ends, and raise what ended it."""
        try:
            self.start()
        except NotAcquired:
            if self._stopping.is_set():
                return
            raise
        try:
            self.wait()
        finally:
            self.stop()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def prepared(self, session: SparkSession) -> Landing:
        """Its tables, made or checked, and how rows are landed in them: for those who land without a stream."""
        self._session = session
        return self._prepared()

    def _prepared(self) -> Landing:
        options, naming = self.options, naming_of(self.options)
        targets = [self._target(landing) for landing in options.landings()]
        dead = Table(self._session, options.dead_letters) if options.on_bad_messages == "quarantine" else None
        if dead is not None:
            make_dead_letters(dead, options)
        return Landing(
            options=options,
            naming=naming,
            targets=targets,
            dead=dead,
            cores=self._session.sparkContext.defaultParallelism,
            bytes_per_row=targets[0].table.file_bytes_per_row(),
        )

    def _target(self, landing: LakeOptions) -> Target:
        from penstock.lake.schemas import message_schema, properties_to_keep
        from penstock.lake.shape import Shape

        table = Table(self._session, landing.table)
        is_there = table.exists()
        message = self._schema or message_schema(
            landing,
            sample=lambda: sample_of(self._session, self.options, self._settings.kafka),
            table=table.schema() if is_there else None,
            properties=table.properties() if is_there else None,
        )
        if not is_there:
            columns = Shape(landing, message, transform=self._transform).columns
            make_table(table, columns, landing, properties_to_keep(landing, message))
        return Target(
            options=landing,
            table=table,
            message=message,
            shape_for=lambda schema: Shape(landing, message, table=schema, transform=self._transform),
        )

    def _hold(self, *, is_standby: bool) -> None:
        """Take the locks; those that were lost are given back before."""
        self._giving_back.close()
        taken = locks_of_process(self._settings).held(
            locks_of(self.options), is_standby=is_standby, given_up=self._stopping.is_set
        )
        self._held = self._giving_back.enter_context(taken)

    def _begin(self) -> None:
        """Begin the stream, from its checkpoint if there is one, else from the tables."""
        self._held.check()
        self._landing.forget()
        begun = start_of(self._admin, self.options, [target.table for target in self._landing.targets])
        self._progress = replace(self._progress, stored=begun.stored)
        self._group.show(begun.stored)
        self._sizing = self._sized()
        self._unshown: deque[Offsets] = deque()
        self._stream = Stream(self._session, self.options, self._settings.kafka, self._land)
        starts, ids_of = begun.starts, None
        if self.options.dedup:
            starts = remembering(self._admin, self._settings.kafka, self.options, starts=starts, stored=begun.stored)
            ids_of = self._landing.targets[0].message
        self._stream.start(starts, self._sizing, ids_of=ids_of)

    def _sized(self) -> Sizing:
        return sizing(self.options, cores=self._landing.cores, bytes_per_row=self._landing.bytes_per_row)

    def _land(self, frame: DataFrame, batch: Batch, initial: Offsets, late: Late) -> None:
        """In Spark's thread."""
        self._held.check()
        landed = self._landing.land(frame, batch, initial=initial, late=late)
        with self._counting:
            self._progress = self._progress.after(landed)
        self._unshown.append(batch.ends)

    def _watch(self) -> None:
        """The pipeline's own thread: shows offsets, begins the stream again, and knows why it ended."""
        try:
            while (failure := self._watch_stream()) is not None:
                if not self._passes(failure):
                    self._failure = failure
                    return
                tell(LakeStreamRestarted(pipeline=self.options.name, reason=str(failure)))
                self._begin_again()
        except NotAcquired as failure:
            self._failure = None if self._stopping.is_set() else failure
        except PenstockError as failure:
            self._failure = failure
        except Exception as failure:  # noqa: BLE001 - a thread has nobody above it, and must not end in silence
            self._failure = StreamFailed(f"the pipeline failed: {failure!r}", next_step="please report it")
        finally:
            # One after the other, whatever the one before raised: who stops it waits for the last.
            with ExitStack() as ending:
                ending.callback(self._ended.set)
                ending.callback(self._giving_back.close)
                ending.callback(self._admin.close)
                self._end_stream()

    def _end_stream(self) -> None:
        """Nobody watches it any more, so it must not go on by itself; Java may be gone, and the stream with it."""
        with suppress(Exception):
            if self._stream.is_active:
                self._stream.stop(self._grace_s)

    def _watch_stream(self) -> PenstockError | None:
        """Until the stream ends, or is to end; returns what it failed with."""
        while self._stream.is_active:
            if self._stopping.wait(_LOOK_S):
                self._stream.stop(self._grace_s)
                self._show()
                return None
            if (lost := self._held.lost) is not None:
                # Nobody else can have it yet, but soon may: the batch under way is given up.
                self._stream.stop(0)
                return LockLost(lost)
            self._show()
            if self._has_outgrown():
                self._stream.stop(self._grace_s)
                tell(LakeBatchesResized(pipeline=self.options.name, messages=self._sized().messages_min))
                try:
                    self._begin()
                except PenstockError as failure:
                    return failure
        self._show()
        return None if self._stopping.is_set() else self._stream.failed(gap=self._gap)

    def _show(self) -> None:
        """Tell Kafka what is in the tables and in Spark's own log: that is the order."""
        if time.monotonic() - self._ends_at >= _ENDS_S or not self._stream.is_active:
            self._ends_at = time.monotonic()
            ends = self._stream.ends_known()
            with self._counting:
                self._progress = replace(self._progress, ends=ends)
        logged = self._stream.logged() if self._unshown else {}
        shown = None
        while self._unshown and all(logged.get(each, 0) >= end for each, end in self._unshown[0].items()):
            shown = self._unshown.popleft()
        if shown is not None:
            crash_point("lake.batch_logged")
            self._group.show({each: end - 1 for each, end in shown.items() if end > 0})
        else:
            self._group.repeat()

    def _has_outgrown(self) -> bool:
        return not self.options.ends_at_latest_offsets and has_outgrown(self._sizing, self._sized())

    def _begin_again(self) -> None:
        """After something that passes: again and again, with longer pauses, until it goes or we are stopped."""
        for pause in itertools.chain(_BACKOFF_S, itertools.repeat(_BACKOFF_S[-1])):
            if self._stopping.wait(pause):
                return
            try:
                if self._takes_locks and self._held.lost is not None:
                    # We had them, so this is no mistake of the one who started us.
                    self._hold(is_standby=True)
                self._begin()
            except PenstockError as failure:
                if not self._passes(failure):
                    raise
                tell(LakeStreamRestarted(pipeline=self.options.name, reason=str(failure)))
            else:
                return

    def _passes(self, failure: PenstockError) -> bool:
        """Whether it is waited for."""
        return failure.retriable or (self._takes_locks and isinstance(failure, LockLost))

    def _gap(self) -> Gap | None:
        """Which messages Kafka no longer has, where Spark only says that some may be lost."""
        try:
            start_of(self._admin, self.options, [target.table for target in self._landing.targets])
        except Gap as gap:
            return gap
        return None
