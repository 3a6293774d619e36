"""A run from its start to its end: what `penstock lake run` and `python -m penstock.lake` do alike."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Unavailable
from penstock.lake.options import LakeOptions
from penstock.lake.progress import Watch
from penstock.lake.running import Job, Run, State
from penstock.lake.session_end import end_session, java_process
from penstock.observe.events import LakeProgressed
from penstock.observe.health import Check, Health
from penstock.observe.serving import measured
from penstock.settings import Settings
from penstock.signals import heeded
from penstock.values import Duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Show = Callable[[Sequence[LakeProgressed]], None]

_LOOK_S = 1.0


def serve(
    settings: Settings,
    pipelines: Sequence[LakeOptions],
    *,
    start_session: Callable[[], SparkSession],
    is_standby: bool,
    grace: Duration,
    show: Show,
    leave: Callable[[], None] = lambda: None,
    metrics_port: int | None = None,
) -> PenstockError | None:
    """Run the pipelines until they end, or SIGTERM or Ctrl-C stops them; returns what failed.

    Call it in the main thread. A second signal ends everything at once; `leave` is the last that is called then.
    """
    with stopped_by_signals(leave) as stopping:
        run = Run(
            settings,
            pipelines,
            start_session=start_session,
            stopping=stopping,
            is_standby=is_standby,
            grace_s=grace.seconds,
        )
        with _measured(run, metrics_port):
            in_time = _watched(run, Watch(settings.kafka, run.jobs), stopping, show)
    failure = run.failure()
    if failure is None and not in_time:
        return Unavailable("a pipeline did not end in time, and was abandoned", next_step="its table is whole")
    return failure


def _watched(run: Run, watch: Watch, stopping: threading.Event, show: Show) -> bool:
    """From the start to the end of all pipelines, and of Spark; whether they ended in time."""
    run.start()
    watch.start()
    try:
        while not stopping.wait(_LOOK_S) and not run.is_over:
            show(watch.look())
    finally:
        watch.stop()
        in_time = run.stop()
        show(watch.look())
        if run.session is not None:
            end_session(run.session)
    return in_time


@contextmanager
def stopped_by_signals(leave: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """An event that the first SIGTERM or Ctrl-C sets; the second one ends the process, and Spark with it."""
    stopping = threading.Event()

    def heed(number: int) -> None:
        if stopping.is_set():
            if (java := java_process()) is not None:
                java.kill()
            leave()
            os._exit(128 + number)
        stopping.set()

    with heeded(heed):
        yield stopping


def _measured(run: Run, port: int | None) -> AbstractContextManager[None]:
    """Metrics and health over HTTP, if somebody asks for them."""
    health = Health()
    for job in run.jobs:
        health.add(f"pipeline {job.name}", _check(job))
    return measured(health, port)


def _check(job: Job) -> Check:
    return lambda: None if job.state is State.RUNNING else f"is {job.state.value}"
