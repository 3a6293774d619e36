"""A log in memory, with what a Kafka topic does to its readers: transactions, markers, fencing, cuts, append times.

`MemoryBroker` is the shared side; each `MemoryLog` is one client's view. For the simulator and unit tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from penstock.errors import Fenced, NotFound, OffsetGone, TransactionBroken, UsageError
from penstock.ledger.log import Announce, Entry, FailureListener
from penstock.values import Bounds


class _Fate(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    MARKER = "marker"
    COMPACTED = "compacted"


@dataclass(slots=True)
class _Stored:
    entry: Entry
    fate: _Fate


@dataclass(slots=True)
class MemoryPartition:
    """All that was ever appended; `start` says how much of it readers may still see."""

    stored: list[_Stored] = field(default_factory=list)
    start: int = 0
    open_offsets: set[int] = field(default_factory=set)
    """Those of open transactions."""

    def stable_end(self) -> int:
        return min(self.open_offsets, default=len(self.stored))

    def history(self, start: int = 0) -> list[Entry]:
        """Every committed record from `start` to the stable end, also those that were cut: for whoever checks."""
        stable = self.stored[start : self.stable_end()]
        return [stored.entry for stored in stable if stored.fate is _Fate.COMMITTED]

    def replaced(self) -> list[_Stored]:
        """What compaction may take: all but the newest of each key, and tombstones."""
        visible = [stored for stored in self.stored[: self.stable_end()] if stored.fate is _Fate.COMMITTED]
        newest = {stored.entry.key: stored for stored in visible}
        return [
            stored for stored in visible[:-1] if stored.entry.value is None or newest[stored.entry.key] is not stored
        ]


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    open_records: list[_Stored] = field(default_factory=list)
    touched: dict[tuple[str, int], None] = field(default_factory=dict)
    opened_ms: int | None = None


class MemoryBroker:
    """The topics and transactional ids that several `MemoryLog`s share."""

    def __init__(self, *, now_ms: Callable[[], int], transaction_timeout_ms: int = 10_000) -> None:
        self._now_ms, self._transaction_timeout_ms = now_ms, transaction_timeout_ms
        self._topics: dict[str, list[MemoryPartition]] = {}
        self._producers: dict[str, _Producer] = {}

    def create(self, topic: str, partitions: int) -> None:
        self._topics[topic] = [MemoryPartition() for _ in range(partitions)]

    def topics(self) -> list[str]:
        return list(self._topics)

    def partitions(self, topic: str) -> list[MemoryPartition]:
        if self._producers:
            self._end_overdue()
        try:
            return self._topics[topic]
        except KeyError:
            raise NotFound(f"there is no topic {topic}") from None

    def log(self, topic: str) -> MemoryLog:
        return MemoryLog(self, topic)

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None) -> int:
        return self._store(topic, partition, value, key, _Fate.COMMITTED).entry.offset

    def initialise(self, transactional_id: str) -> int:
        """Fence whoever used the id before, abort what it left open; the new epoch of the id."""
        producer = self._producers.setdefault(transactional_id, _Producer())
        producer.epoch += 1
        self._finish(producer, _Fate.ABORTED)
        return producer.epoch

    def append_in(
        self, transactional_id: str, epoch: int, topic: str, partition: int, value: bytes | None, key: bytes | None
    ) -> None:
        producer = self._producer(transactional_id, epoch)
        if producer.opened_ms is None:
            producer.opened_ms = self._now_ms()
        stored = self._store(topic, partition, value, key, _Fate.OPEN)
        producer.open_records.append(stored)
        producer.touched[topic, partition] = None
        self.partitions(topic)[partition].open_offsets.add(stored.entry.offset)

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> None:
        self._finish(self._producer(transactional_id, epoch), _Fate.COMMITTED if commit else _Fate.ABORTED)

    def cut(self, topic: str, partition: int, before: int) -> None:
        there = self.partitions(topic)[partition]
        if before > len(there.stored):
            raise UsageError(f"{topic}/{partition} ends at {len(there.stored)}, it cannot be cut at {before}")
        there.start = max(there.start, before)

    def compact(self, topic: str) -> int:
        """Take away what a later record of the same key replaced, and old tombstones; how many records went.

        As on a broker, the newest record of a partition stays, and so do offsets.
        """
        gone = [stored for partition in self.partitions(topic) for stored in partition.replaced()]
        for stored in gone:
            stored.fate = _Fate.COMPACTED
        return len(gone)

    def _producer(self, transactional_id: str, epoch: int) -> _Producer:
        producer = self._producers[transactional_id]
        if producer.epoch != epoch:
            raise Fenced(
                f"transactional id {transactional_id} was initialised by somebody else",
                next_step="go on under a fresh id",
            )
        return producer

    def _store(self, topic: str, partition: int, value: bytes | None, key: bytes | None, fate: _Fate) -> _Stored:
        there = self.partitions(topic)[partition]
        stored = _Stored(Entry(partition, len(there.stored), self._now_ms(), key, value), fate)
        there.stored.append(stored)
        return stored

    def _end_overdue(self) -> None:
        """As the broker does: a transaction that is open for too long is aborted, and its producer fenced."""
        for producer in self._producers.values():
            if producer.opened_ms is not None and self._now_ms() - producer.opened_ms >= self._transaction_timeout_ms:
                producer.epoch += 1
                self._finish(producer, _Fate.ABORTED)

    def _finish(self, producer: _Producer, fate: _Fate) -> None:
        producer.opened_ms = None
        for stored in producer.open_records:
            stored.fate = fate
        ended = {(stored.entry.partition, stored.entry.offset) for stored in producer.open_records}
        for topic, partition in producer.touched:
            there = self.partitions(topic)[partition]
            there.open_offsets -= {offset for of, offset in ended if of == partition}
            self._store(topic, partition, None, None, _Fate.MARKER)
        producer.open_records.clear()
        producer.touched.clear()


class MemoryLog:
    """One client's view of one topic in a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, topic: str) -> None:
        self.name = topic
        self.on_failure: FailureListener | None = None
        self._broker = broker
        self._positions: dict[int, int] = {}

    def partition_count(self) -> int:
        return len(self._broker.partitions(self.name))

    def assign(self, positions: Mapping[int, int]) -> None:
        self._positions = dict(positions)

    def read(self, count_max: int, timeout_ms: int) -> list[Entry]:
        entries: list[Entry] = []
        for partition in self._positions:
            self._read_one(partition, count_max, entries)
        return entries

    def _read_one(self, partition: int, count_max: int, into: list[Entry]) -> None:
        there = self._broker.partitions(self.name)[partition]
        position = self._positions[partition]
        if position < there.start or position > len(there.stored):
            raise OffsetGone(topic=self.name, partition=partition, offset=position)
        end = there.stable_end()
        while position < end and len(into) < count_max:
            stored = there.stored[position]
            if stored.fate is _Fate.COMMITTED:
                into.append(stored.entry)
            position += 1
        self._positions[partition] = position

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        topic = self._broker.partitions(self.name)
        return {p: Bounds(topic[p].start, topic[p].stable_end(), len(topic[p].stored)) for p in partitions}

    def append(self, partition: int, value: bytes | None, key: bytes | None = None) -> None:
        self._broker.append(self.name, partition, value, key)

    def flush(self, timeout_ms: int) -> None:
        """Everything is in the log already."""

    def cut(self, partition: int, before: int) -> None:
        self._broker.cut(self.name, partition, before)

    def transactions(self, *, group: str, instance: str, announce: Announce) -> MemoryTransactions:
        return MemoryTransactions(self._broker, f"{group}-{instance}", announce)

    def fence(self, transactional_id: str) -> None:
        self._broker.initialise(transactional_id)

    def close(self) -> None:
        self._positions = {}


class MemoryTransactions:
    """One producer at a time, each under an id that is never used again after a doubt."""

    def __init__(self, broker: MemoryBroker, name: str, announce: Announce) -> None:
        self._broker, self._name, self._announce = broker, name, announce
        self._number = self._epoch = 0
        self._is_open = self._is_spent = False

    @property
    def id(self) -> str:
        return f"{self._name}-{self._number}"

    def open(self) -> str:
        self._number += 1
        self._epoch = self._broker.initialise(self.id)
        self._announce(self.id)
        return self.id

    def begin(self) -> None:
        if self._is_spent:
            raise TransactionBroken(f"{self.id} is spent", next_step="call settle_and_renew")
        if self._is_open:
            raise UsageError(f"a transaction of {self.id} is open already")
        self._is_open = True

    def send(self, topic: str, partition: int, value: bytes | None, *, key: bytes | None = None) -> None:
        self._must_be_open()
        with self._spent_by_a_fence():
            self._broker.append_in(self.id, self._epoch, topic, partition, value, key)

    def commit(self) -> None:
        self._end(commit=True)

    def abort(self) -> None:
        self._end(commit=False)

    def spend(self) -> None:
        """As after a call without an answer."""
        self._is_spent, self._is_open = True, False

    def settle_and_renew(self) -> str:
        self._broker.initialise(self.id)
        self._is_spent = False
        return self.open()

    def close(self) -> None:
        """A client that goes away ends nothing: what it left open stays until it is fenced, or its time is over."""

    def _end(self, *, commit: bool) -> None:
        self._must_be_open()
        self._is_open = False
        with self._spent_by_a_fence():
            self._broker.end(self.id, self._epoch, commit=commit)

    def _must_be_open(self) -> None:
        if not self._is_open:
            raise UsageError(f"no transaction of {self.id} is open")

    @contextmanager
    def _spent_by_a_fence(self) -> Iterator[None]:
        try:
            yield
        except Fenced:
            self.spend()
            raise
