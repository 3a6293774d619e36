"""Which offsets a table has, which a micro-batch spans, and what follows from the two.

The table's log stores one number per partition: the last offset that is dealt with, whether it became a row or not. A
micro-batch spans offsets from its start up to, not including, its end. Rows at or below the stored offset are dropped,
so whatever is read twice lands once; a batch that starts above the next offset would leave a hole, so it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import Gap, Refused
from penstock.values import Bounds, TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Naming:
    """How the offset of a partition is called in the table's log, in the format of kafka-delta-ingest."""

    app_id: str
    with_topic: bool
    """Where several topics go into one table, their partitions of the same number must not share a name."""

    def of(self, partition: TopicPartition) -> str:
        topic = f"{partition.topic}-" if self.with_topic else ""
        return f"{self.app_id}-{topic}{partition.partition}"

    def dead(self) -> Naming:
        """The names for dead letters: theirs may run ahead of the table's, so they are kept apart."""
        return Naming(f"{self.app_id}.dead", self.with_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The offsets that a micro-batch spans: `starts` are the first, `ends` are one past the last."""

    id: int
    starts: Offsets
    ends: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What landing a batch means for one table."""

    versions: Offsets
    """What to store; partitions that do not move are left out. Empty: the table has all of it."""

    above: Offsets
    """Where the table has a part of the batch: only rows above these are new."""

    messages: int
    """How many offsets are new; at most so many rows."""


def batch_of(batch_id: int, *, before: Offsets, ends: Offsets, initial: Offsets) -> Batch:
    """A batch begins where the one before it ended, else where the stream began.

    A partition that came later begins at 0: the source itself refuses one whose first messages are gone.
    """
    return Batch(id=batch_id, starts={each: before.get(each, initial.get(each, 0)) for each in ends}, ends=ends)


def plan(batch: Batch, *, stored: Offsets, initial: Offsets) -> Plan:
    """Raises Gap when landing the batch would leave a hole in the table."""
    versions: dict[TopicPartition, int] = {}
    above: dict[TopicPartition, int] = {}
    messages = 0
    for partition, end in batch.ends.items():
        start, last = batch.starts[partition], stored.get(partition)
        # A table without an offset must see the partition from where the stream began: it may be a new one in the
        # place of one that was dropped.
        next_offset = initial.get(partition, 0) if last is None else last + 1
        if start > next_offset:
            raise Gap(topic=partition.topic, partition=partition.partition, first=next_offset, last=start - 1)
        if end <= max(start, next_offset):
            # Nothing of it is new. What is read of it all the same must not land.
            if end > start:
                above[partition] = end - 1
            continue
        if last is not None and start <= last:
            above[partition] = last
        versions[partition] = end - 1
        messages += end - max(start, next_offset)
    return Plan(versions=versions, above=above, messages=messages)


def starting(
    *, bounds: Mapping[TopicPartition, Bounds], stored: Offsets, initial: Offsets
) -> dict[TopicPartition, int]:
    """Where a stream without a checkpoint begins: behind what the table has, else at `initial`.

    Raises Gap when Kafka no longer has the next message, Refused when it does not have it yet.
    """
    return {each: _next(each, stored[each], has) if each in stored else initial[each] for each, has in bounds.items()}


def _next(partition: TopicPartition, last: int, has: Bounds) -> int:
    if last + 1 < has.start:
        raise Gap(topic=partition.topic, partition=partition.partition, first=last + 1, last=has.start - 1)
    if last + 1 > has.end:
        raise Refused(
            f"the table has offsets of {partition} up to {last}, but the topic ends before {has.end}: it is not the "
            "topic that the table was filled from",
            next_step="land the new topic under another app_id, or `penstock lake rewind` to its start",
        )
    return last + 1


def lowest(several: Sequence[Offsets], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """What every one of several tables has; a partition that one of them lacks is left out."""
    return {
        each: min(stored[each] for stored in several)
        for each in partitions
        if all(each in stored for stored in several)
    }


def anchors(*, stored: Offsets, starts: Offsets) -> dict[TopicPartition, int]:
    """What to store before anything is landed, so that a partition is never begun at another place again."""
    return {each: start - 1 for each, start in starts.items() if each not in stored and start > 0}


def from_json(text: str) -> dict[TopicPartition, int]:
    """Offsets as Spark's Kafka source writes them: {"topic": {"0": 12}}."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    }


def to_json(offsets: Offsets) -> str:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)
