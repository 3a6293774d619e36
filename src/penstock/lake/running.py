"""Pipelines at work in one process: one Spark session, a thread for each, and what stops them.

    run = Run(settings, pipelines, start_session=..., stopping=threading.Event())
    run.start()
    run.stop()

A pipeline that fails does not stop the others. Each holds its locks while it runs; one that loses a lock stops at once
and waits to get it back, because whoever has it now is at work.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.errors import NotAcquired, PenstockError, StreamFailed, TransientError
from penstock.lake.locks import Held, LockLost, Locks, locks_of, locks_of_process
from penstock.lake.maintenance import Caretaker
from penstock.lake.options import LakeOptions
from penstock.lake.pipeline import GRACE_S, Pipeline, Progress
from penstock.observe import tell
from penstock.observe.events import (
    LakeLockLost,
    LakePipelineEnded,
    LakePipelineFailed,
    LakePipelineStarted,
    LakePipelineWaits,
    LakeStreamRestarted,
)
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.1
_SIGNAL_S = 0.5
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0)
# What a pipeline's own stop may take beyond its grace: Spark's, and giving the locks back.
_BEYOND_GRACE_S = 30.0


class State(Enum):
    WAITING = "waiting"
    """For its locks, or for Spark."""
    RUNNING = "running"
    ENDED = "ended"
    """It was stopped, or it has landed all that it was to land."""
    FAILED = "failed"


class Job:
    """One pipeline of a run, from its locks to its end, in a thread of its own."""

    def __init__(
        self,
        options: LakeOptions,
        settings: Settings,
        *,
        session: Callable[[], SparkSession],
        locks: Locks,
        is_standby: bool,
        stopping: threading.Event,
        grace_s: float,
    ) -> None:
        self.options, self._settings = options, settings
        self.state = State.WAITING
        self.failure: PenstockError | None = None
        self._grace_s = grace_s
        self._session, self._locks, self._is_standby, self._stopping = session, locks, is_standby, stopping
        self._pipeline: Pipeline | None = None
        self._before = Progress()
        self._thread = threading.Thread(target=self._run, name=f"lake-job-{options.name}", daemon=True)

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def progress(self) -> Progress:
        return self._before if self._pipeline is None else added(self._before, self._pipeline.progress)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._hold_and_run()
        except PenstockError as failure:
            self._fail(failure)
        except CancelledError:
            self.state = State.ENDED  # stopped before Spark was there
        except Exception as failure:  # noqa: BLE001 - the other pipelines go on, and this one is named at the end
            self._fail(StreamFailed(f"pipeline {self.name} failed: {failure!r}", next_step="please report it"))
        else:
            self.state = State.ENDED
            tell(LakePipelineEnded(pipeline=self.name, version=self.progress.version, rows=self.progress.rows))

    def _hold_and_run(self) -> None:
        is_standby = self._is_standby
        for attempt in itertools.count():
            try:
                self._held_run(is_standby=is_standby)
                return
            except LockLost as lost:
                tell(LakeLockLost(pipeline=self.name, lock=str(lost.lock)))
            except TransientError as trouble:
                if not attempt:
                    raise
                tell(LakeStreamRestarted(pipeline=self.name, reason=str(trouble)))
                if self._stopping.wait(_BACKOFF_S[min(attempt, len(_BACKOFF_S)) - 1]):
                    return
            # We had the locks, so this is no mistake of the one who started us: wait until they are free again.
            is_standby = True

    def _held_run(self, *, is_standby: bool) -> None:
        """Returns when the pipeline has ended. Raises what it failed with, LockLost among it."""
        self.state = State.WAITING
        tell(LakePipelineWaits(pipeline=self.name))
        try:
            with self._locks.held(
                locks_of(self.options), is_standby=is_standby, given_up=self._stopping.is_set
            ) as held:
                self._run_under(held)
        except NotAcquired:
            if not self._stopping.is_set():
                raise

    def _run_under(self, held: Held) -> None:
        session = self._session()
        make_active(session)
        self._before, self._pipeline = self.progress, None
        pipeline = Pipeline(self.options, self._settings, session=session)
        if self._stopping.is_set():
            return
        pipeline.start(held=held)
        self._pipeline, self.state = pipeline, State.RUNNING
        tell(LakePipelineStarted(pipeline=self.name, table=self._tables()))
        with self._maintained(session):
            self._watch(pipeline)

    def _watch(self, pipeline: Pipeline) -> None:
        while not pipeline.wait(_LOOK_S):
            if self._stopping.is_set():
                pipeline.stop(grace_s=self._grace_s)
                # What fails because everything ends is no failure: the table is as its last commit left it.
                return
        # A signal to all our processes ends Java too, and that may show before the signal does.
        if pipeline.failure is not None and not self._stopping.wait(_SIGNAL_S):
            raise pipeline.failure

    @contextmanager
    def _maintained(self, session: SparkSession) -> Iterator[None]:
        if self.options.maintenance is None:
            yield
            return
        caretaker = Caretaker(session, self.options, self.options.maintenance)
        caretaker.start()
        try:
            yield
        finally:
            caretaker.stop()

    def _tables(self) -> str:
        return ", ".join(landing.table for landing in self.options.landings())

    def _fail(self, failure: PenstockError) -> None:
        self.failure, self.state = failure, State.FAILED
        tell(LakePipelineFailed(pipeline=self.name, error=failure.what, next_step=failure.next_step))


class Run:
    """All pipelines of a process. `start_session` makes or finds the one Spark session; it is called in a thread."""

    def __init__(
        self,
        settings: Settings,
        pipelines: Sequence[LakeOptions],
        *,
        start_session: Callable[[], SparkSession],
        stopping: threading.Event,
        is_standby: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        """It stops when somebody sets `stopping`; the batches under way then have `grace_s`."""
        self._stopping, self._grace_s = stopping, grace_s
        self._start_session = start_session
        self._session: Future[SparkSession] = Future()
        locks = locks_of_process(settings)
        self.jobs = tuple(
            Job(
                options,
                settings,
                session=self._awaited_session,
                locks=locks,
                is_standby=is_standby,
                stopping=stopping,
                grace_s=grace_s,
            )
            for options in pipelines
        )

    @property
    def session(self) -> SparkSession | None:
        """The session, once it is there."""
        done = self._session
        return done.result() if done.done() and not done.cancelled() and done.exception() is None else None

    def start(self) -> None:
        """Begin to take the locks, and to start Spark, which takes as long."""
        # Not in the main thread: there Spark would put a signal handler of its own in the place of ours.
        threading.Thread(target=self._make_session, name="lake-spark", daemon=True).start()
        for job in self.jobs:
            job.start()

    @property
    def is_over(self) -> bool:
        return all(job.wait(0) for job in self.jobs)

    def stop(self) -> bool:
        """Stop all pipelines; whether they have ended in time."""
        self._stopping.set()
        deadline = time.monotonic() + self._grace_s + _BEYOND_GRACE_S
        have_ended = [job.wait(max(0.0, deadline - time.monotonic())) for job in self.jobs]
        return all(have_ended)

    def failure(self) -> PenstockError | None:
        """What the run as a whole ended with: that of the one pipeline that failed, or all of them named."""
        return told_together({job.name: job.failure for job in self.jobs if job.failure is not None}, len(self.jobs))

    def _awaited_session(self) -> SparkSession:
        while not self._stopping.is_set():
            # Not by the time-out of `result`: what it raises may be a TimeoutError of the session itself.
            if wait([self._session], _LOOK_S).done:
                return self._session.result()
        raise CancelledError

    def _make_session(self) -> None:
        try:
            self._session.set_result(self._start_session())
        except BaseException as failure:  # noqa: BLE001 - every pipeline waits for this answer
            self._session.set_exception(failure)


class RunFailed(PenstockError):
    """Several pipelines failed, or one of several."""

    def __init__(self, what: str, *, exit_code: int, next_step: str) -> None:
        super().__init__(what, next_step=next_step)
        self.exit_code = exit_code  # type: ignore[misc]


def told_together(failures: dict[str, PenstockError], pipelines: int) -> PenstockError | None:
    """One failure of one pipeline as it is; otherwise which failed, and the exit code if they agree on it."""
    if not failures:
        return None
    first = next(iter(failures.values()))
    if pipelines == 1 or len({(failure.what, failure.next_step) for failure in failures.values()}) == 1 < len(failures):
        return first
    codes = {failure.exit_code for failure in failures.values()}
    each = "; ".join(f"{name}: {failure.what}" for name, failure in failures.items())
    return RunFailed(
        f"{len(failures)} of {pipelines} pipelines failed: {each}",
        exit_code=codes.pop() if len(codes) == 1 else 1,
        next_step=first.next_step,
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    rows: int


class Rate:
    """Rows per second over the last moments. Belongs to one thread."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._samples: list[_Sample] = []

    def seen(self, rows: int, *, at: float) -> float:
        """The rate, now that so many rows were landed in all."""
        self._samples = [one for one in self._samples if at - one.at <= self._window_s][-100:]
        self._samples.append(_Sample(at, rows))
        first, last = self._samples[0], self._samples[-1]
        return (last.rows - first.rows) / (last.at - first.at) if last.at > first.at else 0.0


def added(before: Progress, now: Progress) -> Progress:
    """How far a pipeline is, with what it had landed before its lock was lost."""
    if not before.batches:
        return now
    return Progress(
        batches=before.batches + now.batches,
        rows=before.rows + now.rows,
        bad=before.bad + now.bad,
        bytes=before.bytes + now.bytes,
        files=before.files + now.files,
        version=max(before.version, now.version),
        stored={**before.stored, **now.stored},
        ends={**before.ends, **now.ends},
        landed_at=max(before.landed_at, now.landed_at),
        seconds=now.seconds or before.seconds,
    )


def make_active(session: SparkSession) -> None:
    """Spark remembers the session by thread; in a new one it must be told."""
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
