"""Work on the topics that must not hold a worker up: reading gaps again, and copying dead letters.

A worker asks and goes on; the answers are there some steps later. `KafkaClerk` does it in a thread of its own, the
simulator at once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from penstock.claims.dead_letters import DeadLetters, Letter
from penstock.claims.running import broken_by
from penstock.errors import PenstockError
from penstock.kafka.reader import Reader, Received
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.ranges import Ranges
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

log = logging.getLogger("penstock.queue")

_BACK_OFF_S = 0.5


class Reread(NamedTuple):
    """What the topic still has of these offsets."""

    partition: int
    ranges: Ranges
    records: Sequence[Received]
    log_start: int
    """What lies below it was deleted."""
    reached: int
    """What lies below it was read; where nothing came, there is nothing to be seen."""


class CopiesMade(NamedTuple):
    partition: int
    ranges: Ranges


class Clerk(Protocol):
    def reread(self, partition: int, ranges: Ranges) -> None: ...

    def copy(self, partition: int, ranges: Ranges, letters: Sequence[Letter]) -> None: ...

    def answers(self) -> list[Reread | CopiesMade]:
        """What was finished since the last time; each that was asked for comes once."""
        ...


class _Copy(NamedTuple):
    partition: int
    ranges: Ranges
    letters: Sequence[Letter]


class KafkaClerk:
    """A thread that reads, and one that copies: neither waits for the other. Tries again while the broker is away."""

    def __init__(self, settings: Settings, topic: str, *, group: str) -> None:
        self.failure: PenstockError | None = None
        """What ended one of the threads: what is asked for then is never answered."""
        self._topic = topic
        self._reader = Reader(_impatient(settings.kafka))
        self._letters = DeadLetters(settings, group=group)
        self._to_read: queue.SimpleQueue[tuple[int, Ranges] | None] = queue.SimpleQueue()
        self._to_copy: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Reread | CopiesMade] = queue.SimpleQueue()
        self._copying: set[tuple[int, Ranges]] = set()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"penstock-{name}-{topic}", daemon=True)
            for name, work in (("rereader", self._read_all), ("copier", self._copy_all))
        ]
        for thread in self._threads:
            thread.start()

    def reread(self, partition: int, ranges: Ranges) -> None:
        self._to_read.put((partition, ranges))

    def copy(self, partition: int, ranges: Ranges, letters: Sequence[Letter]) -> None:
        if (partition, ranges) not in self._copying:
            # Who asks again while it is under way would have it twice.
            self._copying.add((partition, ranges))
            self._to_copy.put(_Copy(partition, ranges, letters))

    def answers(self) -> list[Reread | CopiesMade]:
        found: list[Reread | CopiesMade] = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def close(self) -> None:
        self._closing.set()
        self._to_read.put(None)
        self._to_copy.put(None)
        for thread in self._threads:
            thread.join()
        self._reader.close()
        self._letters.close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as bug:
            log.exception("the clerk of %s stopped by a bug", self._topic)
            self.failure = broken_by(bug, f"the clerk of {self._topic}")

    def _read_all(self) -> None:
        while (job := self._to_read.get()) is not None and not self._closing.is_set():
            self._read_patiently(*job)
            if self._to_read.empty():
                self._rest()

    def _rest(self) -> None:
        """Nothing more is fetched meanwhile."""
        try:
            self._reader.assign({})
        except PenstockError as trouble:
            log.warning("%s is fetched although nobody reads it again: %s", self._topic, trouble)

    def _read_patiently(self, partition: int, ranges: Ranges) -> None:
        """Nothing of this partition can be read again without it: so it is tried for as long as it takes."""
        while not self._closing.is_set():
            try:
                self._done.put(self._read(partition, ranges))
                return
            except PenstockError as trouble:
                log.warning("%s/%d cannot be read again yet: %s", self._topic, partition, trouble)
                self._closing.wait(_BACK_OFF_S)

    def _read(self, partition: int, ranges: Ranges) -> Reread:
        place = TopicPartition(self._topic, partition)
        # So that the position is one of this reading, also if the log has nothing of it.
        self._reader.assign({place: ranges[0][0]})
        records = list(self._reader.ranges(place, ranges))
        reached = self._reader.position(place)
        start, _ = self._reader.bounds(place)
        return Reread(partition, ranges, records, start, reached)

    def _copy_all(self) -> None:
        """A copy that fails is asked for again by the worker, when the burial is a lease older."""
        while (job := self._to_copy.get()) is not None and not self._closing.is_set():
            try:
                self._letters.bury_each(job.letters)
            except PenstockError as trouble:
                tell(events.BurialFailed(topic=self._topic, partition=job.partition, reason=str(trouble)))
            else:
                self._done.put(CopiesMade(job.partition, job.ranges))
            finally:
                self._copying.discard((job.partition, job.ranges))


def _impatient(settings: KafkaSettings) -> KafkaSettings:
    """Every question to a broker waits for the fetch before it, and a fetch of nothing waits so long; what is fetched
    beyond the ranges that were asked for is thrown away.
    """
    return replace(settings, client={"fetch.wait.max.ms": "5", "queued.min.messages": "1000", **settings.client})
