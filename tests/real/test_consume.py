"""Groups on a real broker: shared partitions, kept positions, takeovers, at least and at most once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from real_kafka import eventually
from real_process import started

from penstock.broker import Embedded
from penstock.claims.batch import Batch
from penstock.claims.consumption import Consumption
from penstock.claims.group import Group
from penstock.errors import UsageError
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

PARTITIONS = 4


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", partitions=2, heartbeat=duration("500ms")),
    )


@pytest.fixture
def topic(settings: Settings) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name=name, partitions=PARTITIONS, config={}, reason="a test")])
    return name


def send(settings: Settings, topic: str, count: int, *, start: int = 0) -> None:
    with Writer(settings.kafka) as writer:
        for number in range(start, start + count):
            writer.send(topic, number % PARTITIONS, b"%d" % number)
        assert writer.flush(30_000) == 0


class Consumer:
    """A member in a thread of this process, which acks everything that it gets."""

    def __init__(self, settings: Settings, topic: str, client: str, *, delivery: str = "at_least_once") -> None:
        self.values: list[int] = []
        self.consumption: Consumption = Group(settings, "shop", client=client).consume([topic], delivery=delivery)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.consumption as messages:
            for batch in messages.batches(timeout_s=0.2):
                self._take(batch)
            while not self._stop.is_set():
                for batch in messages.batches(timeout_s=0.05):
                    self._take(batch)

    def _take(self, batch: Batch) -> None:
        self.values += [int(message.value or b"-1") for message in batch]
        if not batch.is_lost:
            batch.ack()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def consumers(settings: Settings, topic: str, *names: str, delivery: str = "at_least_once") -> Iterator[list[Consumer]]:
    running = [Consumer(settings, topic, name, delivery=delivery) for name in names]
    try:
        yield running
    finally:
        for consumer in running:
            consumer.stop()


def test_two_members_share_the_partitions_and_every_message_comes_once(settings: Settings, topic: str) -> None:
    with consumers(settings, topic, "a", "b") as (a, b):
        eventually(lambda: len(a.consumption.partitions) == len(b.consumption.partitions) == PARTITIONS // 2)
        send(settings, topic, 1_000)
        eventually(lambda: len(a.values) + len(b.values) >= 1_000)

        assert Counter(a.values + b.values) == Counter(range(1_000))
        assert a.values
        assert b.values


def test_a_group_goes_on_where_it_stopped_and_kafka_tools_see_its_offsets(settings: Settings, topic: str) -> None:
    send(settings, topic, 400)
    with consumers(settings, topic, "a") as [a]:
        eventually(lambda: len(a.values) >= 400)
    with Admin(settings.kafka) as admin:
        committed = admin.group_offsets("shop", [TopicPartition(topic, p) for p in range(PARTITIONS)])
        assert sum(committed.values()) == 400

    send(settings, topic, 100, start=400)
    with consumers(settings, topic, "b") as [b]:
        eventually(lambda: len(b.values) >= 100)
        assert sorted(b.values) == list(range(400, 500))


def test_an_unacked_message_holds_the_position_and_comes_again(settings: Settings, topic: str) -> None:
    send(settings, topic, 4 * PARTITIONS)
    seen: set[int] = set()
    with Group(settings, "shop", client="a").consume([topic]) as messages:
        for message in messages:
            seen.add(int(message.value or b"-1"))
            if message.offset != 1:  # the second of each partition is never finished
                message.ack()
            if len(seen) == 4 * PARTITIONS:
                break

    with consumers(settings, topic, "b") as [b]:
        eventually(lambda: len(b.values) >= 3 * PARTITIONS)
        assert sorted(b.values) == list(range(PARTITIONS, 4 * PARTITIONS))


CHILD = """
import sys, time
from penstock.claims.group import Group
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, claims, topic, delivery = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=claims, partitions=2, heartbeat=duration("500ms")),
)
with Group(settings, "shop", client="child").consume([topic], delivery=delivery, batch_max=50) as messages:
    for message in messages:
        print(int(message.value), flush=True)
        message.ack()
"""


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_killed_member_is_taken_over(settings: Settings, topic: str, delivery: str) -> None:
    send(settings, topic, 2_000)
    command = [sys.executable, "-c", CHILD, settings.kafka.bootstrap_servers, settings.claims.topic, topic, delivery]
    with started(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        first = [int(child.stdout.readline()) for _ in range(500)]
        child.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        first += [int(line) for line in child.stdout.read().split("\n")[:-1]]

    with consumers(settings, topic, "b", delivery=delivery) as [b]:
        eventually(lambda: bool(b.values))
        print(f"\n  {delivery}: first message after {time.monotonic() - killed_at:.2f} s (2 HB are 1 s)")
        eventually(lambda: len(set(first) | set(b.values)) >= 2_000 - (50 if delivery == "at_most_once" else 0))
        eventually(lambda: b.consumption.partitions == [TopicPartition(topic, p) for p in range(PARTITIONS)])
        send(settings, topic, PARTITIONS, start=10_000)
        eventually(lambda: sum(value >= 10_000 for value in b.values) == PARTITIONS)

    counts = Counter(first + [value for value in b.values if value < 10_000])
    if delivery == "at_least_once":
        assert set(counts) == set(range(2_000))
    else:
        assert max(counts.values()) == 1
        assert len(counts) >= 2_000 - 50 - PARTITIONS


def test_partitions_that_appear_later_are_consumed_too(settings: Settings, topic: str) -> None:
    with consumers(settings, topic, "a") as [a]:
        eventually(lambda: len(a.consumption.partitions) == PARTITIONS)
        with Admin(settings.kafka) as admin:
            admin.grow(topic, PARTITIONS + 1)
        with Writer(settings.kafka) as writer:
            writer.send(topic, PARTITIONS, b"77")
            assert writer.flush(30_000) == 0
        eventually(lambda: a.values == [77])


def test_a_member_that_joins_gets_its_share_and_nothing_is_doubled_by_it(settings: Settings, topic: str) -> None:
    with consumers(settings, topic, "a") as [a]:
        eventually(lambda: len(a.consumption.partitions) == PARTITIONS)
        with consumers(settings, topic, "b") as [b]:
            eventually(lambda: len(a.consumption.partitions) == len(b.consumption.partitions) == PARTITIONS // 2)
            send(settings, topic, 400)
            eventually(lambda: len(a.values) + len(b.values) >= 400)
            assert Counter(a.values + b.values) == Counter(range(400))
        eventually(lambda: len(a.consumption.partitions) == PARTITIONS)


def test_wrong_use_is_told(settings: Settings) -> None:
    with pytest.raises(UsageError, match="is no delivery"):
        Group(settings, "shop").consume(["orders"], delivery="exactly_twice")
    with pytest.raises(UsageError, match="topics must be a list"):
        Group(settings, "shop").consume("orders")
