"""A topic with messages in memory, as a queue's worker reads it: with gaps, deletions and a slow broker.

Every message has a *task*: what its handler does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.claims.dead_letters import Letter
from penstock.crash import crash_point
from penstock.queue.clerk import CopiesMade, Reread
from penstock.queue.headers import DUE, EXPIRES
from penstock.queue.ranges import Ranges
from penstock.testing.simulation import Host

TOPIC = "orders"

Kind = Literal["succeeds", "fails once", "fails always", "kills"]


class Task(NamedTuple):
    kind: Kind = "succeeds"
    lasts_ms: int = 0
    key: bytes | None = None
    due_ms: int | None = None
    expires_ms: int | None = None

    @property
    def ends_badly(self) -> bool:
        return self.kind in ("fails always", "kills")


class Sent:
    """A message as it was read."""

    __slots__ = ("_headers", "_offset", "_partition", "task")

    def __init__(self, partition: int, offset: int, task: Task) -> None:
        self._partition, self._offset, self.task = partition, offset, task
        times = ((DUE, task.due_ms), (EXPIRES, task.expires_ms))
        self._headers: list[tuple[str, bytes | None]] = [(name, b"%d" % at) for name, at in times if at is not None]

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self.task.key

    def value(self) -> bytes | None:
        return b"v"

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def error(self) -> object | None:
        return None

    def __len__(self) -> int:
        return len(b"v")


@dataclass(slots=True)
class TopicPartition:
    sent: dict[int, Sent] = field(default_factory=dict)
    """By offset, in order; what is not in here is invisible."""
    start: int = 0
    """What lies below it was deleted."""
    end: int = 0

    def send(self, partition: int, task: Task | None) -> None:
        """At the end; without a task it is a transaction's marker."""
        if task is not None:
            self.sent[self.end] = Sent(partition, self.end, task)
        self.end += 1

    def between(self, start: int, end: int) -> list[Sent]:
        return [
            self.sent[offset] for offset in range(max(start, self.start), min(end, self.end)) if offset in self.sent
        ]


class TopicSource:
    """Reads the heads; a broker may give one record at a time, or nothing."""

    topic = TOPIC

    def __init__(self, host: Host, partitions: Sequence[TopicPartition]) -> None:
        self._host, self._partitions = host, partitions
        self._positions: dict[int, int] = {}
        self._deleted: dict[int, int] = {}

    def assign(self, heads: Mapping[int, int]) -> None:
        self._positions = dict(heads)

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def deleted(self) -> Mapping[int, int]:
        found, self._deleted = self._deleted, {}
        return found

    def read(self, count_max: int, timeout_ms: int) -> list[Sent]:
        simulation = self._host.simulation
        courses = ["all", "one", "nothing"] if simulation.faults.slow_reads else ["all"]
        course = simulation.choose(f"{self._host.instance} fetches", courses)
        found: list[Sent] = []
        for number, position in self._positions.items():
            there = self._partitions[number]
            if course == "nothing" or len(found) >= count_max:
                break
            if position < there.start:
                self._host.simulation.reach("a head was deleted")
                self._deleted[number] = position = there.start
            room = 1 if course == "one" else count_max - len(found)
            records = there.between(position, there.end)[:room]
            found += records
            self._positions[number] = records[-1].offset() + 1 if len(records) == room else max(position, there.end)
        return found


Written = Callable[[Host, Letter], None]


class TopicClerk:
    """Answers with the next step or later; at times it could not read as far as it was asked, or not copy."""

    def __init__(self, host: Host, partitions: Sequence[TopicPartition], *, written: Written) -> None:
        self._host, self._partitions, self._written = host, partitions, written
        self._to_read: list[tuple[int, Ranges]] = []
        self._to_copy: list[tuple[int, Ranges, Sequence[Letter]]] = []

    def reread(self, partition: int, ranges: Ranges) -> None:
        self._to_read.append((partition, ranges))

    def copy(self, partition: int, ranges: Ranges, letters: Sequence[Letter]) -> None:
        self._to_copy.append((partition, ranges, letters))

    def answers(self) -> list[Reread | CopiesMade]:
        return [*self._reread(), *self._copied()]

    def _reread(self) -> list[Reread]:
        if not self._to_read or self._course("rereads", ["whole", "later", "short"]) == "later":
            return []
        jobs, self._to_read = self._to_read, []
        return [self._read(partition, ranges) for partition, ranges in jobs]

    def _read(self, partition: int, ranges: Ranges) -> Reread:
        there = self._partitions[partition]
        reached = ranges[-1][1]
        if self._course("reaches", ["the end", "the middle"]) == "the middle":
            self._host.simulation.reach("could not be read again yet")
            reached = (ranges[0][0] + reached) // 2
        records = [record for start, end in ranges for record in there.between(start, min(end, reached))]
        return Reread(partition, ranges, records, there.start, reached)

    def _copied(self) -> list[CopiesMade]:
        jobs, self._to_copy = self._to_copy, []
        made: list[CopiesMade] = []
        for partition, ranges, letters in jobs:
            if self._course("copies", ["all", "in vain"]) == "in vain":
                self._host.simulation.reach("a copy failed")
                continue
            for letter in letters:
                self._written(self._host, letter)
            crash_point("worker.copied")
            made.append(CopiesMade(partition, ranges))
        return made

    def _course(self, what: str, courses: list[str]) -> str:
        simulation = self._host.simulation
        return simulation.choose(
            f"{self._host.instance} {what}", courses if simulation.faults.slow_reads else courses[:1]
        )
