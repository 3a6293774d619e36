"""Short ways to topics and records of a real broker, for the tests of `penstock.kafka`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.kafka.reader import EARLIEST, Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition, duration


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def settings_for(bootstrap: str, *, request_timeout: str = "30s", **client: str) -> KafkaSettings:
    named = {name.replace("_", "."): value for name, value in client.items()}
    return KafkaSettings(bootstrap_servers=bootstrap, client=named, request_timeout=duration(request_timeout))


def new_topic(admin: Admin, *, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    name = unique("t")
    admin.create([TopicSpec(name=name, partitions=partitions, config=config or {}, reason="a test")])
    return name


def append(settings: KafkaSettings, partition: TopicPartition, *values: bytes) -> None:
    with Writer(settings) as writer:
        for value in values:
            writer.send(*partition, value)
        assert writer.flush(30_000) == 0
        assert writer.failures == 0


def values_in(settings: KafkaSettings, partition: TopicPartition, **reader: Any) -> list[bytes | None]:
    """What a reader sees from the start of the log to the end that it may read to."""
    with Reader(settings, **reader) as opened:
        _, end = opened.bounds(partition)
        opened.assign({partition: EARLIEST})
        found: list[bytes | None] = []
        eventually(
            lambda: found.extend(each.value() for each in opened.read(100, 200)) or opened.position(partition) >= end
        )
        return found


def eventually(is_so: Callable[[], object], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"it did not come true in {within_s} s"
        time.sleep(0.01)


@contextmanager
def recorded_events() -> Iterator[list[Any]]:
    from penstock.observe.events import subscribed

    events: list[Any] = []
    with subscribed(events.append):
        yield events
