"""What an application holds in its hand: one name for all its processes, one set of settings.

app = penstock.App("shop")
with app.lock("nightly-report") as lock: ...
with app.group().consume(["orders"]) as messages: ...

@app.every("1h", name="report")
def report(run): ...
app.run_jobs()

orders = app.queue("orders")
@orders.handler()
def charge(order: Order) -> None: ...
app.work()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self, TypeVar

from penstock.claims.group import Group
from penstock.claims.job import Job, Run, running
from penstock.claims.lock import Lock
from penstock.config import load
from penstock.errors import ConfigError, UsageError
from penstock.queue.solitude import Solitude
from penstock.settings import Settings
from penstock.signals import heeded
from penstock.values import DurationLike, checked_name, duration

if TYPE_CHECKING:
    from penstock.lake.pipeline import Pipeline
    from penstock.queue.queue import Delivery, Order, Queue, Start
    from penstock.queue.retry import BackoffLike
    from penstock.queue.running import Station
    from penstock.queue.writers import Writers

DEFAULT_NAME = "penstock"

F = TypeVar("F", bound=Callable[[Run], object])


class App:
    """The consuming application: processes that give the same name share the work."""

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        """Without `settings` they come from the environment and penstock.toml."""
        self.name = checked_name("app", name)
        self.settings = settings or load().settings
        self._jobs: dict[str, Job] = {}
        self._queues: dict[str, Queue] = {}
        self._writers: Writers | None = None
        self._solitude = Solitude()
        self._lock = threading.Lock()
        if not self.settings.kafka.bootstrap_servers:
            raise ConfigError(
                "no Kafka is named",
                next_step="set PENSTOCK_KAFKA_BOOTSTRAP_SERVERS, or [kafka] bootstrap_servers in penstock.toml",
            )

    def group(self, *, client: str | None = None) -> Group:
        """For consuming topics whose partitions its members share. `client` names this one."""
        return Group(self.settings, self.name, client=client)

    def lock(self, name: str, *, timeout: DurationLike | None = None) -> Lock:
        """A named lock; use it as a context manager. `timeout`: how long entering may wait."""
        return Lock(self.settings, name, group=self.name, timeout=timeout)

    def every(
        self, period: DurationLike, *, name: str | None = None, delivery: str = "at_least_once"
    ) -> Callable[[F], F]:
        """A function that one of the app's processes calls once in every period, while `run_jobs` or `jobs` runs.

        `name` is the function's own unless given; all processes must say the same.
        """

        def registered(function: F) -> F:
            job = self._job(function, name=name or function.__name__, every=period, delivery=delivery)
            with self._lock:
                if job.name in self._jobs:
                    raise UsageError(f"there is a job {job.name} already", next_step="give one of them another name=")
                self._jobs[job.name] = job
            return function

        return registered

    def once(
        self, name: str, *, every: DurationLike, delivery: str = "at_least_once", timeout: DurationLike | None = None
    ) -> Callable[[Callable[[Run], object]], Callable[[], Run | None]]:
        """Makes a function that, when called, runs if no process has run it in the present period; else it gives None.

        `timeout`: how long to wait for a process that is at it.
        """

        def wrapped(function: Callable[[Run], object]) -> Callable[[], Run | None]:
            job = self._job(function, name=name, every=every, delivery=delivery)
            return lambda: job.run_if_due(timeout=timeout)

        return wrapped

    def jobs(self, *, grace: DurationLike = "30s") -> AbstractContextManager[threading.Event]:
        """Run what `every` named, in the background, while the block lasts; a job at its end has `grace` to finish."""
        with self._lock:
            jobs = list(self._jobs.values())
        return running(jobs, grace=grace)

    def run_jobs(self, *, grace: DurationLike = "30s") -> None:
        """Run what `every` named until SIGTERM or Ctrl-C. Call it in the main thread."""
        with self.jobs(grace=grace) as stopping, heeded(lambda _: stopping.set(), once=True):
            stopping.wait()

    # Queues

    def queue(
        self,
        name: str,
        *,
        topic: str | None = None,
        lease: DurationLike | None = None,
        attempts_max: int | None = None,
        order: Order | None = None,
        delivery: Delivery = "at_least_once",
        backoff: DurationLike | None = None,
        backoff_max: DurationLike | None = None,
        backoff_of: Mapping[type[BaseException], BackoffLike] | None = None,
        give_up_on: tuple[type[BaseException], ...] = (),
        time_limit: DurationLike | None = None,
        in_hand_max: int | None = None,
        in_hand_max_bytes: int | None = None,
        in_hand_max_per_key: int | None = None,
        in_hand_max_bytes_per_key: int | None = None,
        gaps_max: int | None = None,
        grace: DurationLike | None = None,
        partitions: int | None = None,
        start: Start = "earliest",
    ) -> Queue:
        """A queue on a topic of its own, which is called like it unless `topic` says otherwise.

        What is not given comes from the settings `[queue]`. `backoff_of` and `give_up_on` are by type of error.
        `start` holds where this app never had the queue. Raises UsageError.
        """
        from penstock.queue.queue import Queue

        queue = Queue(
            self.settings,
            name,
            group=self.name,
            writers=self._open_writers,
            solitude=self._solitude,
            topic=topic,
            order=order,
            delivery=delivery,
            start=start,
            backoff_of=backoff_of,
            give_up_on=give_up_on,
            lease=lease,
            attempts_max=attempts_max,
            backoff=backoff,
            backoff_max=backoff_max,
            time_limit=time_limit,
            in_hand_max=in_hand_max,
            in_hand_max_bytes=in_hand_max_bytes,
            in_hand_max_per_key=in_hand_max_per_key,
            in_hand_max_bytes_per_key=in_hand_max_bytes_per_key,
            gaps_max=gaps_max,
            grace=grace,
            partitions=partitions,
        )
        with self._lock:
            self._check_new(queue)
            self._queues[queue.topic] = queue
        return queue

    # Tables

    def lake(self, name: str, *, lock: bool = True, standby: bool = False, **options: object) -> Pipeline:
        """A pipeline that lands topics in a Delta table: that of `[lake.NAME]`, where these options come first.

        Without an app_id the table keeps its offsets under `<app>.<name>`. `lock` and `standby` are those of
        `penstock.lake.Pipeline`. Raises ConfigError.
        """
        from penstock.lake.options import LakeOptions
        from penstock.lake.pipeline import Pipeline

        lake = self.settings.lake
        given = {"app_id": f"{self.name}.{name}", **lake.pipelines.get(name, {}), **options}
        read = LakeOptions.read(name, given, folder=lake.folder)
        return Pipeline(read, self.settings, lock=lock, standby=standby)

    def check_workable(self) -> None:
        """Raises UsageError if no queue has a handler."""
        if not self._handled():
            raise UsageError(
                f"app {self.name} has no handler", next_step="write orders = app.queue(...) and @orders.handler()"
            )

    @contextmanager
    def working(self, *, grace: DurationLike | None = None) -> Iterator[list[Station]]:
        """Handle the messages of all queues that have a handler, in the background, while the block lasts."""
        self.check_workable()
        queues = self._handled()
        stations = [queue.station() for queue in queues]
        for station in stations:
            station.start()
        try:
            yield stations
        finally:
            for queue, station in zip(queues, stations, strict=True):
                station.stop(queue.settings.grace if grace is None else duration(grace))
            for station in stations:
                station.join()

    def work(self, *, stopping: threading.Event | None = None, grace: DurationLike | None = None) -> None:
        """Handle messages until `stopping` is set; without it, until SIGTERM or Ctrl-C, in the main thread.

        What is being worked on has `grace` to end, the rest is given back at once. Raises what ended a queue.
        """
        from penstock.queue.running import check_ends, keep_working

        stop = stopping or threading.Event()
        signals = heeded(lambda _: stop.set(), once=True) if stopping is None else nullcontext()
        with signals, self.working(grace=grace) as stations:
            keep_working(stations, stop)
        check_ends(stations)

    def __enter__(self) -> Self:
        self._open_writers()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is being sent. Who sends again opens it again. Idempotent."""
        with self._lock:
            writers, self._writers = self._writers, None
        if writers is not None:
            writers.close()

    def _check_new(self, queue: Queue) -> None:
        if queue.topic in self._queues:
            raise UsageError(
                f"topic {queue.topic} has the queue {self._queues[queue.topic].name} already",
                next_step="use that object, or give this queue a topic of its own",
            )
        if taken := next((one.topic for one in self._queues.values() if one.name == queue.name), None):
            raise UsageError(
                f"there is a queue {queue.name} already, on topic {taken}", next_step="give one of them another name"
            )

    def _handled(self) -> list[Queue]:
        """The queues that have a handler."""
        with self._lock:
            return [queue for queue in self._queues.values() if queue.registered]

    def _open_writers(self) -> Writers:
        from penstock.queue.writers import Writers

        with self._lock:
            if self._writers is None:
                self._writers = Writers(self.settings.kafka, self.settings.send)
            return self._writers

    def _job(self, function: Callable[[Run], object], *, name: str, every: DurationLike, delivery: str) -> Job:
        return Job(self.settings, name, function, every=every, group=self.name, delivery=delivery)


def lock(name: str, *, timeout: DurationLike | None = None) -> Lock:
    """A named lock of the default app, on the settings of environment and file."""
    return App(DEFAULT_NAME).lock(name, timeout=timeout)


def once(
    name: str, *, every: DurationLike, delivery: str = "at_least_once", timeout: DurationLike | None = None
) -> Callable[[Callable[[Run], object]], Callable[[], Run | None]]:
    """A job of the default app, run at most once in a period when called: see `App.once`."""

    def wrapped(function: Callable[[Run], object]) -> Callable[[], Run | None]:
        def run() -> Run | None:
            return App(DEFAULT_NAME).once(name, every=every, delivery=delivery, timeout=timeout)(function)()

        return run

    return wrapped
