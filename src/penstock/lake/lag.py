"""How far a table is behind its topics: in messages, and as the age of the oldest one that is not landed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.claims.lag import next_times
from penstock.kafka.topics import Admin
from penstock.lake.offsets import Offsets
from penstock.settings import KafkaSettings
from penstock.values import Bounds, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    partition: TopicPartition
    stored: int | None
    """The last offset that the table has dealt with; none where it has seen nothing of the partition."""
    bounds: Bounds
    oldest_ms: int | None = None
    """When the next message to be landed was written, where one waits and could be read at once."""

    @property
    def next_offset(self) -> int:
        return next_offset(self.stored, self.bounds)

    @property
    def messages(self) -> int:
        """Offsets, so aborted messages and markers count too."""
        return max(0, self.bounds.stable_end - self.next_offset)

    def seconds(self, now_ms: int) -> float:
        return 0.0 if self.oldest_ms is None else max(0, now_ms - self.oldest_ms) / 1_000


def lag_now(lags: Iterable[PartitionLag], stored: Offsets, now_ms: int) -> tuple[int, float]:
    """Messages and seconds, from what was known of the topics a moment ago and what is stored by now."""
    messages, seconds = 0, 0.0
    for each in lags:
        following = next_offset(stored.get(each.partition), each.bounds)
        messages += max(0, each.bounds.stable_end - following)
        if following <= each.next_offset:
            seconds = max(seconds, each.seconds(now_ms))
    return messages, seconds


def next_offset(stored: int | None, bounds: Bounds) -> int:
    """What is landed next; what the topic no longer has does not count as waiting."""
    return bounds.start if stored is None else max(stored + 1, bounds.start)


def lag_of(
    kafka: KafkaSettings, admin: Admin, stored: Offsets, partitions: Iterable[TopicPartition]
) -> list[PartitionLag]:
    """Raises BrokerUnavailable and NotFound."""
    bounds = admin.bounds(partitions)
    behind = {each: next_offset(stored.get(each), has) for each, has in bounds.items()}
    waiting = {(each, first) for each, first in behind.items() if first < bounds[each].stable_end}
    return lags(stored, bounds, next_times(kafka, waiting))


def lags(
    stored: Offsets, bounds: Mapping[TopicPartition, Bounds], times: Mapping[tuple[TopicPartition, int], int]
) -> list[PartitionLag]:
    return [
        PartitionLag(
            partition=each,
            stored=stored.get(each),
            bounds=has,
            oldest_ms=times.get((each, next_offset(stored.get(each), has))),
        )
        for each, has in sorted(bounds.items())
    ]
