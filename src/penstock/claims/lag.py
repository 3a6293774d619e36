"""How far behind the slots are: the position of each against the end of its partition."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from penstock.claims.look import SlotSeen
from penstock.errors import NotFound
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin
from penstock.settings import KafkaSettings
from penstock.values import Bounds, TopicPartition

# The age is a courtesy: it must not hold up the count.
_AGES_TIMEOUT_S = 3.0

_Place = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLag:
    seen: SlotSeen
    end: int | None
    """How far readers of committed records may read; none where the topic is gone."""
    lag_records: int | None
    """None where there is no position yet, or no topic. Offsets, so aborted records and markers count too."""
    next_time_ms: int | None
    """When the next record to be read was written, where it could be read at once."""

    def age_ms(self, now_ms: int) -> int | None:
        return None if self.next_time_ms is None else max(0, now_ms - self.next_time_ms)


def lags(kafka: KafkaSettings, slots: Iterable[SlotSeen]) -> list[SlotLag]:
    """The lag of every slot that is a partition; locks have none."""
    wanted = [(where, seen) for seen in slots if (where := _where(seen)) is not None]
    with Admin(kafka) as admin:
        bounds = _bounds(admin, {where for where, _ in wanted})
    behind = {(where, _from(seen, bounds[where])) for where, seen in wanted if _lag(seen, bounds.get(where))}
    times = next_times(kafka, behind)
    return [_slot_lag(seen, where, bounds.get(where), times) for where, seen in wanted]


def _slot_lag(seen: SlotSeen, where: TopicPartition, bounds: Bounds | None, times: Mapping[_Place, int]) -> SlotLag:
    return SlotLag(
        seen=seen,
        end=None if bounds is None else bounds.stable_end,
        lag_records=_lag(seen, bounds),
        next_time_ms=None if bounds is None else times.get((where, _from(seen, bounds))),
    )


def _where(seen: SlotSeen) -> TopicPartition | None:
    return None if seen.slot.partition is None else TopicPartition(seen.slot.topic, seen.slot.partition)


def _bounds(admin: Admin, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """Of those that exist."""
    topics = admin.describe({where.topic for where in wanted})
    there = [where for where in wanted if where.topic in topics and where.partition < topics[where.topic].partitions]
    try:
        return admin.bounds(there)
    except NotFound:  # deleted since we looked
        return {}


def _from(seen: SlotSeen, bounds: Bounds) -> int:
    return max(seen.position or 0, bounds.start)


def _lag(seen: SlotSeen, bounds: Bounds | None) -> int | None:
    if bounds is None or seen.position is None:
        return None
    return max(0, bounds.stable_end - _from(seen, bounds))


def next_times(kafka: KafkaSettings, behind: Iterable[_Place]) -> dict[_Place, int]:
    """The append times of the first records from these places on, as many as could be read in time."""
    found: dict[_Place, int] = {}
    left = sorted(behind)
    if not left:
        return found
    deadline = time.monotonic() + _AGES_TIMEOUT_S
    with Reader(kafka) as reader:
        while left and time.monotonic() < deadline:
            # Groups may be at different places of one partition: a reader reads it from one of them at a time.
            round_of = dict(reversed(left))
            left = [place for place in left if round_of[place[0]] != place[1]]
            found |= _first_times(reader, round_of, deadline)
    return found


def _first_times(reader: Reader, positions: Mapping[TopicPartition, int], deadline: float) -> dict[_Place, int]:
    waiting, found = dict(positions), {}
    reader.assign(positions)
    while waiting and time.monotonic() < deadline:
        for record in reader.read(1_000, 100):
            where = TopicPartition(record.topic(), record.partition())
            if where in waiting:
                found[where, waiting.pop(where)] = record.timestamp()[1]
    return found
