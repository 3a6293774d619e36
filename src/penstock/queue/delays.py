"""Which of the ready messages wait for a time that was given at their send: only their own headers tell.

So they are read, the oldest first, up to a bound; of what lies behind it nobody knows, and it counts as ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from penstock.errors import TransientError
from penstock.kafka.reader import Reader, Received
from penstock.queue.headers import marks_of
from penstock.queue.look import PartitionSeen, QueueSeen, Shown
from penstock.queue.ranges import OFFSET_MAX, common, width
from penstock.settings import Settings
from penstock.values import TopicPartition

LOOK_MAX = 10_000
"""So many messages of a queue are read for it, at most."""
_LOOK_MAX_BYTES = 32 * 1024 * 1024
_LOOK_MAX_S = 3.0


class _Looked(NamedTuple):
    delayed: int
    upto: int
    """All below was looked at."""


def with_delays(settings: Settings, queues: list[QueueSeen], now_ms: int) -> list[QueueSeen]:
    """The same, with messages that wait for a time of their own among the waiting."""
    if not any(one.count(Shown.READY) for one in queues):
        return queues
    with Reader(settings.kafka) as reader:
        return [_with_delays(reader, one, now_ms) for one in queues]


def _with_delays(reader: Reader, one: QueueSeen, now_ms: int) -> QueueSeen:
    within = [seen for seen in one.partitions if seen.ready]
    deadline_s = time.monotonic() + _LOOK_MAX_S
    found: dict[int, _Looked] = {}
    for seen in within:
        place = TopicPartition(one.named.topic, seen.partition)
        try:
            found[seen.partition] = _look(reader, place, seen, len(within), now_ms, deadline_s)
        except TransientError:
            found[seen.partition] = _Looked(0, 0)
    unread = sum(_beyond(seen, found[seen.partition].upto) for seen in within)
    partitions = (_moved(seen, found[seen.partition].delayed) if seen.ready else seen for seen in one.partitions)
    return replace(one, partitions=tuple(partitions), unread=unread)


def _look(
    reader: Reader, place: TopicPartition, seen: PartitionSeen, shares: int, now_ms: int, deadline_s: float
) -> _Looked:
    delayed, upto = 0, 0
    count, size_bytes = LOOK_MAX // shares, _LOOK_MAX_BYTES // shares
    for record in _until(reader.ranges(place, seen.ready), deadline_s):
        if count <= 0 or size_bytes <= 0:
            return _Looked(delayed, upto)
        count -= 1
        size_bytes -= len(record)
        due_ms = marks_of(record.headers()).due_ms
        delayed += due_ms is not None and due_ms > now_ms
        upto = record.offset() + 1
    return _Looked(delayed, upto if time.monotonic() >= deadline_s else OFFSET_MAX)


def _until(records: Iterator[Received], deadline_s: float) -> Iterator[Received]:
    for record in records:
        yield record
        if time.monotonic() >= deadline_s:
            return


def _beyond(seen: PartitionSeen, upto: int) -> int:
    return width(common(seen.ready, [(upto, OFFSET_MAX)])) if upto < OFFSET_MAX else 0


def _moved(seen: PartitionSeen, delayed: int) -> PartitionSeen:
    counts = dict(seen.counts)
    counts[Shown.READY] -= delayed
    counts[Shown.WAITING] += delayed
    return replace(seen, counts=counts)
