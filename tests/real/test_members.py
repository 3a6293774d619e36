"""What members do among themselves, on a real broker: names, restarts, pauses, whole topics, preferences, health."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from real_kafka import eventually, recorded_events
from real_process import started

from penstock.broker import Embedded
from penstock.claims.consumption import Consumption
from penstock.claims.group import Group
from penstock.claims.look import opened, read_all, slots_seen
from penstock.claims.naming import this_host
from penstock.claims.operate import operator
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.observe.events import ClaimGained
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

PARTITIONS = 4
HB_S = 0.5


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", partitions=2, heartbeat=duration(HB_S)),
    )


@pytest.fixture
def topic(settings: Settings) -> str:
    return make_topic(settings)


def make_topic(settings: Settings, *, partitions: int = PARTITIONS) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name=name, partitions=partitions, config={}, reason="a test")])
    return name


def send(settings: Settings, topic: str, count: int, *, partition: int) -> None:
    with Writer(settings.kafka) as writer:
        for number in range(count):
            writer.send(topic, partition, b"%d" % number)
        assert writer.flush(30_000) == 0


class Consumer:
    """A member in a thread of this process, which acks everything that it gets, after what it is told to do."""

    def __init__(
        self,
        settings: Settings,
        *topics: str,
        client: str | None = None,
        do: Callable[[], object] = lambda: None,
        batch_max: int = 500,
        **terms: Any,
    ) -> None:
        self.offsets: list[tuple[int, int]] = []
        self._do = do
        self._messages: Consumption = Group(settings, "shop", client=client).consume(
            list(topics), batch_max=batch_max, **terms
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def partitions(self) -> list[TopicPartition]:
        return self._messages.partitions

    @property
    def numbers(self) -> set[int]:
        return {place.partition for place in self.partitions}

    def _run(self) -> None:
        with self._messages as messages:
            for batch in messages.batches():
                self.offsets += [(message.partition, message.offset) for message in batch]
                self._do()
                if not batch.is_lost:
                    batch.ack()

    def stop(self) -> None:
        self._messages.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def stopped_at_the_end(*consumers: Consumer) -> Iterator[None]:
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()


def owners(settings: Settings, group: str = "shop") -> dict[str, str]:
    """Who has what in a group, as everybody may look it up."""
    with opened(settings) as tail:
        seen = slots_seen(read_all(tail, settings), int(time.time() * 1_000))
    return {str(slot.slot): slot.owner[0] for slot in seen if slot.slot.group == group and slot.owner is not None}


def names(settings: Settings) -> set[str]:
    return set(owners(settings, "shop:clients").values())


CHILD = """
import sys
from penstock.claims.group import Group
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, claims, heartbeat, topic, client = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=claims, partitions=2, heartbeat=duration(float(heartbeat)), client=client),
)
lost = lambda slot, token, reason: print("lost", slot, token, flush=True)
with Group(settings, "shop").consume([topic], on_lost=lost) as messages:
    for batch in messages.batches(timeout_s=0.01):
        pass
    while True:
        print("holds", *(place.partition for place in messages.partitions), flush=True)
        for batch in messages.batches(timeout_s=0.05):
            batch.ack()
"""


@contextmanager
def child(settings: Settings, topic: str, client: str = "") -> Iterator[subprocess.Popen[str]]:
    """A member in another process that has all partitions, named by the setting."""
    heartbeat = str(settings.claims.heartbeat.seconds)
    arguments = [settings.kafka.bootstrap_servers, settings.claims.topic, heartbeat, topic, client]
    with started([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        everything = f"holds {' '.join(str(number) for number in range(PARTITIONS))}\n"
        eventually(lambda: process.stdout is not None and process.stdout.readline() == everything)
        yield process


# Names and restarts


def test_a_killed_process_that_comes_back_under_its_name_has_its_partitions_at_once(
    settings: Settings, topic: str
) -> None:
    slow = replace(settings, claims=replace(settings.claims, heartbeat=duration("10s")))
    with child(slow, topic, client="printer") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = time.monotonic()
        again = Consumer(slow, topic, client="printer")
        with stopped_at_the_end(again):
            eventually(lambda: again.numbers == set(range(PARTITIONS)))
            took_s = time.monotonic() - began
            print(f"\n  a killed process had its partitions again after {took_s:.2f} s (2 HB are 20 s)")
            assert took_s < 10


def test_members_without_a_name_take_the_lowest_numbers_and_a_later_one_the_number_that_was_freed(
    settings: Settings, topic: str
) -> None:
    host = this_host()
    first, second, third = (Consumer(settings, topic) for _ in range(3))
    with stopped_at_the_end(first, third):
        eventually(lambda: names(settings) == {f"{host}-0", f"{host}-1", f"{host}-2"})
        before = names(settings)
        second.stop()
        eventually(lambda: len(names(settings)) == 2)
        (freed,) = before - names(settings)
        fourth = Consumer(settings, topic)
        with stopped_at_the_end(fourth):
            eventually(lambda: names(settings) == before)
            eventually(lambda: freed in owners(settings).values())
    assert names(settings) == set()


def test_the_number_of_a_killed_process_is_given_out_again(settings: Settings, topic: str) -> None:
    with child(settings, topic) as process:
        assert names(settings) == {f"{this_host()}-0"}
        process.send_signal(signal.SIGKILL)
        process.wait()
        eventually(lambda: names(settings) == set())
        again = Consumer(settings, topic)
        with stopped_at_the_end(again):
            eventually(lambda: again.numbers == set(range(PARTITIONS)))
            assert names(settings) == {f"{this_host()}-0"}


def test_who_slept_beyond_its_lease_is_told_at_once_what_it_lost_and_takes_another_name(
    settings: Settings, topic: str
) -> None:
    with child(settings, topic) as process:
        os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: names(settings) == set())
        other = Consumer(settings, topic)
        with stopped_at_the_end(other):
            eventually(lambda: other.numbers == set(range(PARTITIONS)))
            assert names(settings) == {f"{this_host()}-0"}
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            lost: list[str] = []
            while len(lost) < PARTITIONS:
                lost += [line.split()[1] for line in [process.stdout.readline()] if line.startswith("lost")]
            assert sorted(lost) == [f"shop/{topic}/{number}" for number in range(PARTITIONS)]
            eventually(lambda: names(settings) == {f"{this_host()}-0", f"{this_host()}-1"})
            eventually(lambda: len(other.partitions) == PARTITIONS // 2)


# Pauses


def test_everybody_gives_back_while_the_group_is_paused_and_goes_on_by_itself_afterwards(
    settings: Settings, topic: str
) -> None:
    for number in range(PARTITIONS):
        send(settings, topic, 100, partition=number)
    a, b = Consumer(settings, topic, client="a"), Consumer(settings, topic, client="b")
    with stopped_at_the_end(a, b):
        eventually(lambda: len(a.partitions) == len(b.partitions) == PARTITIONS // 2)
        eventually(lambda: len({*a.offsets, *b.offsets}) == 100 * PARTITIONS)
        with operator(settings) as ops:
            ops.pause("shop", lasts=duration("60s"), by="ops")
            eventually(lambda: not a.partitions and not b.partitions, within_s=4 * HB_S)
            assert owners(settings) == {}
            send(settings, topic, 10, partition=0)
            ops.resume("shop", by="ops")
            eventually(lambda: len(a.partitions) == len(b.partitions) == PARTITIONS // 2)
            eventually(lambda: len({*a.offsets, *b.offsets}) == 100 * PARTITIONS + 10)
            ops.pause("shop", lasts=duration(4 * HB_S), by="ops")
            eventually(lambda: not a.partitions and not b.partitions, within_s=4 * HB_S)
        eventually(lambda: len(a.partitions) == len(b.partitions) == PARTITIONS // 2)
    assert len(a.offsets) + len(b.offsets) == 100 * PARTITIONS + 10


def test_a_pause_does_not_wait_for_work_in_hand_for_more_than_a_heartbeat(settings: Settings, topic: str) -> None:
    send(settings, topic, 1, partition=0)
    goes_on = threading.Event()
    stuck = Consumer(settings, topic, client="a", do=lambda: goes_on.wait(60))
    with stopped_at_the_end(stuck):
        try:
            eventually(lambda: bool(stuck.offsets))
            with operator(settings) as ops:
                ops.pause("shop", lasts=duration("60s"), by="ops")
                eventually(lambda: owners(settings) == {}, within_s=4 * HB_S)
        finally:
            goes_on.set()


# Choosing


def test_preferred_partitions_are_kept_when_shares_are_evened_out(settings: Settings, topic: str) -> None:
    a = Consumer(settings, topic, client="a", prefer=[0, 3])
    eventually(lambda: a.numbers == set(range(PARTITIONS)))
    b = Consumer(settings, topic, client="b", prefer={topic: [1, 2]})
    with stopped_at_the_end(a, b):
        eventually(lambda: (a.numbers, b.numbers) == ({0, 3}, {1, 2}))


def test_whole_topics_are_claimed_by_one_member_each(settings: Settings) -> None:
    topics = [make_topic(settings, partitions=3) for _ in range(2)]
    everything = sorted(TopicPartition(topic, number) for topic in topics for number in range(3))
    a = Consumer(settings, *topics, client="a", claim="topic")
    with stopped_at_the_end(a):
        eventually(lambda: a.partitions == everything)
        b = Consumer(settings, *topics, client="b", claim="topic")
        with stopped_at_the_end(b):
            eventually(lambda: len(a.partitions) == len(b.partitions) == 3)
            assert {place.topic for place in a.partitions} | {place.topic for place in b.partitions} == set(topics)
            assert len({place.topic for place in a.partitions}) == len({place.topic for place in b.partitions}) == 1
        eventually(lambda: a.partitions == everything)


# Health


def test_a_partition_that_its_owner_is_too_slow_for_goes_to_a_member_that_keeps_up(settings: Settings) -> None:
    topic = make_topic(settings, partitions=2)
    eager = replace(settings, claims=replace(settings.claims, give_up_lag=100))
    slow = Consumer(eager, topic, client="slow", prefer=[0], do=lambda: time.sleep(0.1), batch_max=5)
    eventually(lambda: slow.numbers == {0, 1})
    fast = Consumer(eager, topic, client="fast")
    is_over = threading.Event()

    def produce() -> None:
        # Without a pause that a look could fall into: a lag that shrank once is no lag that grows.
        with Writer(settings.kafka) as writer:
            while not is_over.wait(0.01):
                for number in range(10):
                    writer.send(topic, 0, b"%d" % number)
                writer.poll()

    producing = threading.Thread(target=produce)
    with stopped_at_the_end(slow, fast), recorded_events() as events:
        eventually(lambda: (slow.numbers, fast.numbers) == ({0}, {1}))
        producing.start()
        try:
            eventually(lambda: 0 in fast.numbers, within_s=60)
            gained = [event for event in events if isinstance(event, ClaimGained) and event.slot.endswith("/0")]
            assert len(gained) == 1, "who gave it up took it again"
            eventually(lambda: (slow.numbers, fast.numbers) == ({1}, {0}), within_s=60)
        finally:
            is_over.set()
            producing.join(60)
