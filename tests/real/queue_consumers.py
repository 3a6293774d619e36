"""Queues on a real broker, for the tests of several files: topics, consumers that remember, dead letters, lag."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from real_kafka import eventually

import penstock
from penstock import Message
from penstock.broker import Embedded
from penstock.claims.dead_letters import dead_letter_topic
from penstock.kafka.reader import EARLIEST, Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.queue.queue import Queue
from penstock.queue.running import Station
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

PARTITIONS = 4


def queue_settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", partitions=2, heartbeat=duration("500ms")),
    )


@contextmanager
def queue_topic(settings: Settings) -> Iterator[str]:
    """A topic, and all that a queue makes around it, for as long as this lasts."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name=name, partitions=PARTITIONS, config={}, reason="a test")])
        yield name
        admin.delete([each for each in admin.names() if each.startswith(name)])


class Consumer:
    """A queue in an app of its own, with a handler that remembers what it saw."""

    def __init__(self, settings: Settings, name: str, *, do: Callable[[Message], Any] | None = None, **given: Any):
        self.seen: list[int] = []
        self.stations: list[Station] = []
        handler = {key: given.pop(key) for key in ("concurrency", "batch") if key in given}
        self.app = penstock.App("shop", settings=settings)
        self.queue = self.app.queue(name, **({"lease": "3s", "backoff": "100ms"} | given))

        @self.queue.handler(**handler)
        def handle(n: int, message: Message) -> Any:
            self.seen.append(n)
            return do(message) if do is not None else None

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(number for station in self.stations for number in station.partitions)


@contextmanager
def working(*consumers: Consumer) -> Iterator[None]:
    with ExitStack() as stack:
        for consumer in consumers:
            stack.enter_context(consumer.app)
            consumer.stations = stack.enter_context(consumer.app.working())
        yield
    for consumer in consumers:
        for station in consumer.stations:
            assert station.failure is None


def letters(settings: Settings, name: str) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
    """All dead letters, by value and headers."""
    topic = dead_letter_topic(settings, name, "shop")
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = []
    with Reader(settings.kafka) as reader:
        ends = {place: reader.bounds(place)[1] for place in places}
        reader.assign(dict.fromkeys(places, EARLIEST))
        eventually(
            lambda: (
                found.extend((each.value(), dict(each.headers() or [])) for each in reader.read(500, 200))
                or all(reader.position(place) >= end for place, end in ends.items())
            )
        )
    return found


def lag(settings: Settings, name: str) -> int:
    """What the group's committed offsets say is left."""
    places = [TopicPartition(name, number) for number in range(PARTITIONS)]
    with Admin(settings.kafka) as admin:
        ends, committed = admin.bounds(places), admin.group_offsets("shop", places)
        return sum(ends[place].end - committed.get(place, 0) for place in places)


@contextmanager
def sender(settings: Settings, name: str) -> Iterator[Queue]:
    app = penstock.App("sender", settings=settings)
    with app:
        yield app.queue(name)
