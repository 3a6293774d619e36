"""Reading records: a consumer that is told what to read, and is a member of no group."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.collector import AT_REST
from penstock.errors import BrokerUnavailable, NotFound, OffsetGone, PenstockError, UsageError
from penstock.kafka.errors import NOT_READY, ConnectionWatch, error_of, translated
from penstock.kafka.properties import connect, properties
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

EARLIEST: int = confluent_kafka.OFFSET_BEGINNING
LATEST: int = confluent_kafka.OFFSET_END

# Reading over a short gap is cheaper than a new fetch behind it.
_SEEK_WORTH = 1_000
_BATCH = 1_000
# How long a topic that was just made may be unknown to the broker that is asked.
_PROPAGATION_S = 1.0


class Received(Protocol):
    """A record as it was read."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> object | None: ...
    def __len__(self) -> int: ...


def every(records: Sequence[Received], what: Literal["error", "headers", "partition", "value"]) -> Iterable[Any]:
    """The same thing of every record, without a step of Python for each. Those of one reader are all of one type."""
    return map(getattr(type(records[0]), what), records) if records else ()


class Reader:
    """Reads partitions that are assigned to it by name and offset; it never joins a group.

    Calls from several threads wait for each other, so that closing while another thread reads is safe.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        isolation: Literal["committed", "uncommitted"] = "committed",
        group: str | None = None,
    ) -> None:
        self._settings = settings
        self._timeout_s = settings.request_timeout.seconds
        self._group = group
        self._watch = ConnectionWatch(settings.bootstrap_servers)
        self._lock = threading.RLock()
        self._from: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._known: set[TopicPartition] = set()
        self._trouble: PenstockError | None = None
        config = properties(
            settings,
            preferred={
                "fetch.queue.backoff.ms": 10,
                "fetch.error.backoff.ms": 50,
                # A seek waits for the fetch under way, and a fetch of nothing waits this long.
                "fetch.wait.max.ms": 100,
            },
            fixed={
                # The client wants a group id even of a consumer that never joins one.
                "group.id": group or "penstock-without-group",
                "isolation.level": f"read_{isolation}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
            },
        )
        self._client: Any = connect(confluent_kafka.Consumer, config, self._watch)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets (or EARLIEST, LATEST), and no others.

        Raises NotFound for a partition that does not exist.
        """
        with self._lock:
            client = self._open_client()
            self._check_known(positions)
            self._from, self._ends, self._trouble = dict(positions), {}, None
            # The client remembers a pause beyond the assignment.
            client.resume([_client_partition(each) for each in self._paused])
            self._paused.clear()
            client.unassign()
            client.assign([_client_partition(each, offset) for each, offset in positions.items()])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on elsewhere in an assigned partition; also the way on after OffsetGone.

        Not right after it was assigned at EARLIEST or LATEST: the client, told late where that is, would go back there.
        """
        with self._lock:
            client = self._open_client()
            self._check_assigned(partition)
            # A partition that met an error refuses the client's own seek; taking it off and on again always works.
            target = [_client_partition(partition, offset)]
            client.incremental_unassign(target)
            client.incremental_assign(target)
            self._from[partition] = offset
            self._ends.pop(partition, None)
            if isinstance(self._trouble, OffsetGone) and _partition_of(self._trouble) == partition:
                self._trouble = None
            if partition in self._paused:
                client.pause([_client_partition(partition)])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these; their positions stay."""
        with self._lock:
            wanted = self._checked(partitions)
            self._paused.update(wanted)
            self._open_client().pause([_client_partition(each) for each in wanted])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            wanted = self._checked(partitions)
            self._paused.difference_update(wanted)
            self._open_client().resume([_client_partition(each) for each in wanted])

    def read(self, count_max: int, timeout_ms: int) -> list[Received]:
        """Up to `count_max` records, as soon as there are any; empty after `timeout_ms` without one.

        Records of one partition come in the order of their offsets. Reaching the end of a partition ends the wait
        too, so that `position` may be asked.

        A broker that is away gives nothing, until it is back. Raises OffsetGone when a position is outside the log.
        """
        with self._lock:
            client = self._open_client()
            if self._trouble is not None:
                self._raise_trouble()
            first = client.poll(timeout_ms / 1_000)
            if first is None:
                return []
            records = _consumed(client, count_max - 1) if count_max > 1 else []
            records.insert(0, first)
            if any(every(records, "error")):
                self._note([each for each in records if each.error() is not None])
                records = [each for each in records if each.error() is None]
            if self._trouble is not None and not records:
                self._raise_trouble()
            return records

    def position(self, partition: TopicPartition) -> int:
        """The offset up to which everything was read, invisible records and transaction markers included.

        It is EARLIEST or LATEST while nothing is known of a partition that was assigned so.
        """
        with self._lock:
            client = self._open_client()
            self._check_assigned(partition)
            read_to = client.position([_client_partition(partition)])[0].offset
            return max(int(read_to), self._ends.get(partition, EARLIEST), self._from[partition])

    def ranges(self, partition: TopicPartition, wanted: Iterable[tuple[int, int]]) -> Iterator[Received]:
        """The visible records in these ascending ranges (first, one past the last); what lies between is seeked over.

        Offsets that are invisible, cut away, or beyond the stable end yield nothing. This takes the reader's
        assignment over. Raises BrokerUnavailable when nothing comes for the request time-out.
        """
        gaps = _clamped(wanted, self.bounds(partition))
        if gaps:
            self.assign({partition: gaps[0][0]})
        while gaps:
            for record in self._read_on(partition, gaps):
                offset = record.offset()
                while gaps and offset >= gaps[0][1]:
                    gaps.popleft()
                if gaps and offset >= gaps[0][0]:
                    yield record
            self._skip(partition, gaps)

    def read_at(self, partition: TopicPartition, offset: int) -> Received | None:
        """The record at this offset, or None when it is invisible or gone. Takes the assignment over."""
        return next(self.ranges(partition, [(offset, offset + 1)]), None)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Log start and the end that this reader may read to (the last stable offset, if it reads committed)."""
        with self._lock:
            target = _client_partition(partition)
            try:
                start, end = self._open_client().get_watermark_offsets(target, timeout=self._timeout_s)
            except KafkaException as failure:
                raise self._translated(failure, f"asking for the bounds of {partition}") from failure
            return start, end

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets in the name of the reader's group. Raises Refused while the group has members."""
        wanted = [_client_partition(each, offset) for each, offset in offsets.items()]
        if wanted:
            self._patient("committing", lambda client: client.commit(offsets=wanted, asynchronous=False))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What the reader's group has committed; partitions without an offset are left out.

        A reader of committed records waits until no transaction is about to change them.
        """
        wanted = [_client_partition(each) for each in partitions]
        if not wanted:
            return {}
        answers = self._patient("reading", lambda client: client.committed(wanted, timeout=self._timeout_s))
        return {TopicPartition(each.topic, each.partition): each.offset for each in answers if each.offset >= 0}

    def close(self) -> None:
        """Idempotent; waits for a call of another thread to end."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_on(self, partition: TopicPartition, gaps: deque[tuple[int, int]]) -> list[Received]:
        """The next records of a partition of which these gaps are wanted; empty when the position moved without any."""
        before = self.position(partition)
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            try:
                records = self.read(_BATCH, 100)
            except OffsetGone:
                # The log was cut meanwhile: what is below its new start is gone, the rest is still wanted.
                left = _clamped(gaps, self.bounds(partition))
                gaps.clear()
                gaps.extend(left)
                if gaps:
                    self.seek(partition, gaps[0][0])
                return []
            if records or self.position(partition) > before:
                return records
        raise BrokerUnavailable(
            f"{partition} gave no record from offset {before} in {self._settings.request_timeout}",
            next_step="check the broker (`penstock doctor`)",
        )

    def _skip(self, partition: TopicPartition, gaps: deque[tuple[int, int]]) -> None:
        """Drop the gaps that lie behind us, and seek if the next one is far."""
        position = self.position(partition)
        while gaps and position >= gaps[0][1]:
            gaps.popleft()
        if gaps and gaps[0][0] - position >= _SEEK_WORTH:
            self.seek(partition, gaps[0][0])

    def _check_known(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises NotFound: the client itself would wait for an unknown topic in silence."""
        deadline = time.monotonic() + _PROPAGATION_S
        while unknown := [each for each in partitions if each not in self._known]:
            try:
                topics = self._open_client().list_topics(unknown[0].topic, timeout=self._timeout_s).topics
            except KafkaException as failure:
                raise self._translated(failure, f"looking for {unknown[0]}") from failure
            self._known.update(
                TopicPartition(name, each) for name, found in topics.items() for each in found.partitions
            )
            if unknown[0] in self._known:
                continue
            if time.monotonic() > deadline:
                raise NotFound(f"{unknown[0]} does not exist", next_step="check the name (`penstock topics plan`)")
            time.sleep(0.05)

    def _open_client(self) -> Any:
        if self._client is None:
            raise UsageError("this Reader is closed", next_step="make a new one")
        return self._client

    def _checked(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        wanted = list(partitions)
        for each in wanted:
            self._check_assigned(each)
        return wanted

    def _check_assigned(self, partition: TopicPartition) -> None:
        if partition not in self._from:
            raise UsageError(f"{partition} is not assigned to this reader", next_step="assign it first")

    def _patient(self, doing: str, ask: Callable[[Any], list[Any]]) -> list[Any]:
        """Ask the group's coordinator, again as long as it is not ready."""
        if self._group is None:
            raise UsageError("this reader has no group", next_step="give `group` when you make the reader")
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                with self._lock:
                    answers = ask(self._open_client())
                failure = next((KafkaException(each.error) for each in answers if each.error is not None), None)
            except KafkaException as raised:
                failure = raised
            if failure is None:
                return answers
            if error_of(failure).code() not in NOT_READY or time.monotonic() > deadline:
                raise self._translated(failure, f"{doing} offsets of group {self._group}") from failure
            time.sleep(0.05)

    def _note(self, signs: Iterable[Any]) -> None:
        """Ends of partitions move positions; the first real error is kept for after the records before it."""
        for sign in signs:
            error = sign.error()
            partition = TopicPartition(sign.topic(), sign.partition())
            if error.code() == KafkaError._PARTITION_EOF:
                self._ends[partition] = sign.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._misplaced(partition, sign.offset())
            elif self._trouble is None:
                self._trouble = self._translated(error, f"reading {partition}")

    def _misplaced(self, partition: TopicPartition, offset: int | None) -> None:
        """The client lost its place. Without an offset it is not the log's fault: a leader went away while the client
        asked it about its epoch. Then we go on from where we are.
        """
        if offset is not None and offset >= 0:
            self._trouble = OffsetGone(topic=partition.topic, partition=partition.partition, offset=offset)
        elif partition in self._from:
            self.seek(partition, self.position(partition))

    def _raise_trouble(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _translated(self, failure: KafkaException | KafkaError, doing: str) -> PenstockError:
        return translated(failure, doing, watch=self._watch)


def _consumed(client: Any, count_max: int) -> list[Any]:
    """What is there, at most so many.

    None of it is garbage: the collector would only go through these records several times while they are made.
    """
    AT_REST.begin()
    try:
        records: list[Any] = client.consume(count_max, 0)
        return records
    finally:
        AT_REST.end()


def _client_partition(partition: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID) -> Any:
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)


def _clamped(wanted: Iterable[tuple[int, int]], bounds: tuple[int, int]) -> deque[tuple[int, int]]:
    """The parts of these ranges that a log with these bounds has."""
    start, end = bounds
    inside = ((max(first, start), min(stop, end)) for first, stop in wanted)
    return deque((first, stop) for first, stop in inside if first < stop)


def _partition_of(gone: OffsetGone) -> TopicPartition:
    return TopicPartition(gone.topic, gone.partition)
