"""Where blocks are read from."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.claims.range_reading import RangeReading
from penstock.errors import OffsetGone
from penstock.kafka.topics import Bounds
from penstock.values import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Client:
    """What is asked of it; both logs have the offsets 60 to 99."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.is_gone = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.asked.append(dict(positions))

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.asked.append((place, offset))

    def pause(self, places: list[TopicPartition]) -> None: ...

    def resume(self, places: list[TopicPartition]) -> None: ...

    def bounds(self, place: Any) -> Any:
        if isinstance(place, TopicPartition):
            return 60, 100
        return {each: Bounds(start=60, end=100, stable_end=100) for each in place}

    def position(self, place: TopicPartition) -> int:
        return 0

    def read(self, count_max: int, timeout_ms: int) -> list[Any]:
        if self.is_gone:
            self.is_gone = False
            raise OffsetGone(topic=A.topic, partition=A.partition, offset=10)
        return []


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def reading(client: Client) -> RangeReading:
    made = RangeReading.__new__(RangeReading)
    made.reader, made._admin, made._places = client, client, {}  # type: ignore[assignment]
    return made


def block(first: int, stop: int) -> Any:
    return SimpleNamespace(next=first, stop=stop)


def test_a_new_partition_is_read_from_its_block_on_and_from_nowhere_before(
    reading: RangeReading, client: Client
) -> None:
    list(reading.read({A: [block(10, 70)]}, 100))
    list(reading.read({A: [block(10, 70)], B: [block(200, 300)]}, 100))

    # What is claimed ahead of the log is waited for at its end.
    assert client.asked == [{A: 10}, {A: 10, B: 100}]


def test_after_a_deletion_nothing_is_read_from_the_beginning_either(reading: RangeReading, client: Client) -> None:
    list(reading.read({A: [block(10, 70)]}, 100))
    client.is_gone = True
    parts = list(reading.read({A: [block(10, 70)]}, 100))
    list(reading.read({B: [block(60, 70)]}, 100))
    list(reading.read({A: [block(60, 70)], B: [block(60, 70)]}, 100))

    assert [part.span for part in parts] == [(10, 60)]
    assert client.asked == [{A: 10}, {A: 100, B: 60}, (A, 60)]
