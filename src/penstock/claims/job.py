"""Singleton jobs: many processes have the same job, and each period one of them runs it.

    @app.every("1h", name="report")
    def report(run: Run) -> None:
        write_report(run.scheduled_for, token=run.token)

A job is a lock with a memory. The position of its slot is the log time at which the next period begins; whoever holds
the lock and reads that the log clock has passed it runs the job, and moves it to the end of the present period. So no
machine's own clock decides, and however many periods were missed, the job runs once for the present one.

    at least once: run, then move the position; a crash in between runs the period again
    at most once:  move the position, read it back, then run; a crash in between loses the period
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.claims.lock import DEFAULT_GROUP, Lock, Seen
from penstock.crash import crash_point
from penstock.errors import Fenced, NotAcquired, PenstockError, UsageError
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import Settings
from penstock.values import DurationLike, duration

_LOOK_EVERY_S = 0.02
_TRY_AGAIN_S = 5.0

log = logging.getLogger("penstock.claims")


# When


def period_at(clock_ms: int, every_ms: int) -> int:
    """When the period began that this log time is in. Periods are counted from 1970 in UTC: hours begin on the hour."""
    return clock_ms - clock_ms % every_ms


def remaining_ms(seen: Seen) -> int:
    """How much log time is left until the job is due; it is at once if nobody has ever run it."""
    return 0 if seen.position is None else max(0, seen.position - seen.clock_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, as its function is told of it."""

    name: str
    scheduled_for: datetime
    """When its period began, by the log clock."""
    token: int
    """Hand it on to what is written to: it refuses a lower one than it has seen."""
    lost: threading.Event
    """Set as soon as we cannot be sure any more that nobody else runs it."""
    stopping: threading.Event
    """Set when this process wants to end."""


class Job:
    """Runs a function once in every period, in one of the processes that have a job of this name."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        function: Callable[[Run], object],
        *,
        every: DurationLike,
        group: str = DEFAULT_GROUP,
        delivery: str = "at_least_once",
        client: str | None = None,
    ) -> None:
        self.name, self.every = name, duration(every)
        if not self.every:
            raise UsageError(f"job {name} cannot run every {self.every}", next_step='give a period, such as "1h"')
        if delivery not in ("at_least_once", "at_most_once"):
            raise UsageError(f"{delivery!r} is no delivery of a job", next_step='use "at_least_once" or "at_most_once"')
        self._is_at_most_once = delivery == "at_most_once"
        self._function = function
        self._lock = Lock(settings, name, group=group, client=client)
        # Giving the lock back and asking again takes about that long.
        self._kept_for_ms = 2 * int(settings.claims.heartbeat)

    # Once

    def run_if_due(self, *, timeout: DurationLike | None = None) -> Run | None:
        """Run the present period if nobody has yet, and say which it was; waits while another process is at it.

        Raises what the function raises (the period counts as run), NotAcquired if another is still at it after
        `timeout`, and Fenced if the lock was lost before it was sure that the period counts as run.
        """
        if not self._is_ours(timeout, stopping := threading.Event()):
            return None
        try:
            return self._run(stopping) if not remaining_ms(self._lock.seen) else None
        finally:
            self._lock.release()

    # Again and again

    def run_until(self, stopping: threading.Event) -> None:
        """Run every period that falls to us, until we are to stop; after what goes wrong the next one goes on."""
        while not stopping.is_set():
            try:
                wait_s = self._turn(stopping)
            except Exception as trouble:
                # A thread that ends in silence would be a job that nobody runs.
                wait_s = _TRY_AGAIN_S
                is_known = isinstance(trouble, PenstockError)
                log.error("job %s: trying again in %g s: %s", self.name, wait_s, trouble, exc_info=not is_known)
            stopping.wait(wait_s)

    def _turn(self, stopping: threading.Event) -> float:
        """Hold the lock for as long as something is due soon; returns for how many seconds to leave it alone."""
        if self._is_ours(None, stopping):
            try:
                self._run_what_is_due(stopping)
            finally:
                left_ms = remaining_ms(self._lock.seen)
                self._lock.release()
        elif stopping.is_set():
            return 0.0
        else:
            left_ms = remaining_ms(self._lock.seen)
        if left_ms > self.every:
            log.warning(
                "job %s is due only in %g s: its period was longer, or the log clock ahead; "
                "`penstock claims reset %s --to 0` makes it due at once",
                *(self.name, left_ms / 1_000, self._lock.slot),
            )
        return left_ms / 1_000

    def _run_what_is_due(self, stopping: threading.Event) -> None:
        while not (stopping.is_set() or self._lock.lost.is_set()):
            left_ms = remaining_ms(self._lock.seen)
            if left_ms > self._kept_for_ms:
                return
            if left_ms:
                stopping.wait(_LOOK_EVERY_S)
            else:
                self._run_and_go_on(stopping)
        if self._lock.failure is not None:
            # Nobody reads on for us: what we see of the lock stands still. It has to be acquired anew, after a while.
            raise self._lock.failure

    def _run_and_go_on(self, stopping: threading.Event) -> None:
        try:
            self._run(stopping)
        except Fenced as lost:
            log.warning("job %s: %s", self.name, lost)
        except Exception:
            log.exception("job %s failed; it runs again in the next period", self.name)

    # Inside

    def _is_ours(self, timeout: DurationLike | None, stopping: threading.Event) -> bool:
        """Wait for the lock; in vain if meanwhile another process has run the period, or we are to stop."""
        interest = _Interest(stopping, self._kept_for_ms)
        try:
            self._lock.acquire(timeout, unless=interest.is_gone)
        except NotAcquired:
            if not interest.was_lost:
                raise
            return False
        return True

    def _run(self, stopping: threading.Event) -> Run:
        lock = self._lock
        begins_ms = period_at(lock.seen.clock_ms, self.every)
        ends_ms = begins_ms + self.every
        run = Run(self.name, datetime.fromtimestamp(begins_ms / 1_000, UTC), lock.token, lock.lost, stopping)
        if self._is_at_most_once:
            lock.move_to(ends_ms)
            crash_point("job.begun")
        failure = self._failure_of(run)
        crash_point("job.ended")
        # A failure is an answer too. What tells that a period was not run to its end is a process that dies.
        lock.move_to(ends_ms)
        if failure is not None:
            raise failure
        return run

    def _failure_of(self, run: Run) -> Exception | None:
        began = time.monotonic()
        try:
            self._function(run)
        except Exception as failure:  # noqa: BLE001 - the function is the user's
            tell(events.JobFailed(job=self.name, token=run.token, reason=repr(failure)))
            return failure
        tell(events.JobFinished(job=self.name, token=run.token, seconds=time.monotonic() - began))
        return None


class _Interest:
    """Whether a process that waits for the lock of a job still needs it."""

    def __init__(self, stopping: threading.Event, kept_for_ms: int) -> None:
        self.was_lost = False
        self._stopping, self._kept_for_ms = stopping, kept_for_ms
        self._first: Seen | None = None

    def is_gone(self, seen: Seen) -> bool:
        """We are to stop, or another process has run the period: its position came in while we waited.

        What was there before says nothing: the log clock beside it may have stood still for long.
        """
        self._first = self._first or seen
        has_run = seen.position != self._first.position and remaining_ms(seen) > self._kept_for_ms
        self.was_lost = self._stopping.is_set() or has_run
        return self.was_lost


# Many


@contextmanager
def running(jobs: Iterable[Job], *, grace: DurationLike) -> Iterator[threading.Event]:
    """All of them, each in a thread of its own, while the block lasts; what runs at its end has `grace` to finish."""
    stopping = threading.Event()
    threads = [
        threading.Thread(target=job.run_until, args=(stopping,), name=f"penstock-job-{job.name}", daemon=True)
        for job in jobs
    ]
    for thread in threads:
        thread.start()
    try:
        yield stopping
    finally:
        stopping.set()
        deadline = time.monotonic() + duration(grace).seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("%s did not end in time", thread.name)
