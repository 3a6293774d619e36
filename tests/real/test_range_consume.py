"""Many members on one partition, on a real broker: blocks, deaths, poison, gaps, and what retention took."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from real_kafka import append, eventually, new_topic, recorded_events, unique, values_in

from penstock.broker import Embedded
from penstock.claims.batch import Batch
from penstock.claims.consumption import Consumption
from penstock.claims.dead_letters import dead_letter_topic
from penstock.claims.group import Group
from penstock.claims.terms import Delivery
from penstock.errors import Fenced
from penstock.kafka.topics import Admin
from penstock.kafka.transactions import Transactions
from penstock.observe.events import DataLost
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=unique("claims"), partitions=1, heartbeat=duration("400ms"), delivery_limit=2),
    )


@pytest.fixture
def place(settings: Settings) -> TopicPartition:
    with Admin(settings.kafka) as admin:
        return TopicPartition(new_topic(admin), 0)


def send(settings: Settings, place: TopicPartition, count: int, *, start: int = 0) -> None:
    append(settings.kafka, place, *(b"%d" % number for number in range(start, start + count)))


def opened(
    settings: Settings, place: TopicPartition, client: str, *, delivery: Delivery = "at_least_once"
) -> Consumption:
    return Group(settings, "shop", client=client).consume([place.topic], share="ranges", delivery=delivery)


def number(value: bytes | None) -> int:
    return int(value or b"-1")


class Consumer:
    """A member in a thread of this process, which acks everything that it gets."""

    def __init__(self, settings: Settings, place: TopicPartition, client: str, delivery: Delivery) -> None:
        self.values: list[int] = []
        self.consumption = opened(settings, place, client, delivery=delivery)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.consumption as messages:
            while not self._stop.is_set():
                for batch in messages.batches(timeout_s=0.05):
                    self._take(batch)

    def _take(self, batch: Batch) -> None:
        self.values += [number(message.value) for message in batch]
        batch.ack()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def consumers(
    settings: Settings, place: TopicPartition, *names: str, delivery: Delivery = "at_least_once"
) -> Iterator[list[Consumer]]:
    running = [Consumer(settings, place, name, delivery) for name in names]
    try:
        yield running
    finally:
        for consumer in running:
            consumer.stop()


def dead_letters(settings: Settings, place: TopicPartition) -> list[int]:
    name = dead_letter_topic(settings, place.topic, "shop")
    with Admin(settings.kafka) as admin:
        if name not in admin.names():
            return []
    return [number(value) for value in values_in(settings.kafka, TopicPartition(name, 0))]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_four_members_share_one_partition_and_every_message_comes_once(
    settings: Settings, place: TopicPartition, delivery: Delivery
) -> None:
    send(settings, place, 3_000)
    with consumers(settings, place, "a", "b", "c", "d", delivery=delivery) as members:
        eventually(lambda: sum(len(member.values) for member in members) >= 3_000)
        send(settings, place, 500, start=3_000)
        eventually(lambda: sum(len(member.values) for member in members) >= 3_500)

    assert Counter(value for member in members for value in member.values) == Counter(range(3_500))
    assert sum(bool(member.values) for member in members) > 1
    with Admin(settings.kafka) as admin:
        assert admin.group_offsets("shop", [place]) == {place: 3_500}


def test_a_stopped_member_gives_back_and_the_next_goes_on_at_once(settings: Settings, place: TopicPartition) -> None:
    send(settings, place, 40)
    with opened(settings, place, "a") as messages:
        for message in messages:
            if message.offset != 11:  # acked out of order, and one not at all
                message.ack()
            if message.offset == 20:
                break

    with consumers(settings, place, "b") as [b]:
        eventually(lambda: len(b.values) >= 20)
    assert sorted(b.values) == [11, *range(21, 40)]


CHILD = """
import os, sys
from penstock.claims.group import Group
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, claims, topic, poison = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=claims, partitions=1, heartbeat=duration("400ms"), delivery_limit=2),
)
with Group(settings, "shop", client="child").consume([topic], share="ranges") as messages:
    for message in messages:
        if message.value == poison.encode():
            os._exit(9)
        message.ack()
        print(int(message.value), flush=True)
"""


def child(settings: Settings, place: TopicPartition, *, poison: int = -1) -> subprocess.Popen[str]:
    given = [settings.kafka.bootstrap_servers, settings.claims.topic, place.topic, str(poison)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *given], stdout=subprocess.PIPE, text=True)


def test_what_a_killed_member_had_comes_back(settings: Settings, place: TopicPartition) -> None:
    send(settings, place, 5_000)
    with child(settings, place) as killed:
        assert killed.stdout is not None
        first = [int(killed.stdout.readline()) for _ in range(300)]
        killed.send_signal(signal.SIGKILL)
        first += [int(line) for line in killed.stdout.read().split("\n")[:-1]]

    with consumers(settings, place, "b", "c") as members:
        eventually(lambda: len(set(first).union(*(member.values for member in members))) == 5_000, within_s=60)


def test_a_message_that_kills_its_worker_ends_in_the_dead_letters_alone(
    settings: Settings, place: TopicPartition
) -> None:
    send(settings, place, 60)
    seen: set[int] = set()
    for _ in range(12):
        with child(settings, place, poison=17) as worker:
            timer = threading.Timer(20, worker.kill)
            timer.start()
            assert worker.stdout is not None
            for line in worker.stdout:
                seen.add(int(line))
                if seen >= set(range(60)) - {17} and dead_letters(settings, place):
                    worker.terminate()
            timer.cancel()
        if dead_letters(settings, place):
            break

    assert dead_letters(settings, place) == [17]
    with consumers(settings, place, "b") as [b]:
        send(settings, place, 1, start=100)
        eventually(lambda: 100 in b.values)
    assert seen | set(b.values) == {*range(60), 100} - {17}


def test_a_failed_message_comes_again_and_is_buried_at_the_limit(settings: Settings, place: TopicPartition) -> None:
    send(settings, place, 30)
    tries: Counter[int] = Counter()
    with opened(settings, place, "a") as messages:
        for message in messages.messages(timeout_s=5):
            value = number(message.value)
            tries[value] += 1
            if value == 7:
                message.fail()
            else:
                message.ack()
            if value == 29:
                send(settings, place, 1, start=30)
            if len(tries) == 31 and tries[7] == 2:
                break
        eventually(lambda: dead_letters(settings, place) == [7])

    assert tries[7] == 2
    assert all(count == 1 for value, count in tries.items() if value != 7)


def test_what_was_in_hand_when_the_handler_raised_comes_again(settings: Settings, place: TopicPartition) -> None:
    send(settings, place, 50)

    def charge_all() -> None:
        with opened(settings, place, "a") as messages:
            for message in messages:
                if message.offset == 20:
                    raise ZeroDivisionError
                message.ack()

    with pytest.raises(ZeroDivisionError):
        charge_all()
    with consumers(settings, place, "b") as [b]:
        eventually(lambda: len(b.values) >= 30)
    assert sorted(b.values) == list(range(20, 50))


def test_markers_and_aborted_records_are_passed(settings: Settings, place: TopicPartition) -> None:
    with Transactions(settings.kafka, group="g", instance=unique("i"), announce=lambda _: None) as transactions:
        transactions.open()
        for value in range(20):
            transactions.begin()
            transactions.send(place.topic, place.partition, b"%d" % value)
            if value % 2:
                transactions.abort()
            else:
                transactions.commit()
        with consumers(settings, place, "a", "b") as (a, b):
            eventually(lambda: len(a.values) + len(b.values) == 10)
            with Admin(settings.kafka) as admin:
                end = admin.bounds([place])[place].stable_end
                eventually(lambda: admin.group_offsets("shop", [place]) == {place: end})

    assert sorted(a.values + b.values) == list(range(0, 20, 2))


def test_what_retention_took_is_told_and_passed(settings: Settings, place: TopicPartition) -> None:
    send(settings, place, 100)
    with opened(settings, place, "a") as messages:
        for message in messages:
            message.ack()
            if message.offset == 9:
                break
    with Admin(settings.kafka) as admin:
        admin.cut(place, 60)

    with recorded_events() as events, consumers(settings, place, "b") as [b]:
        eventually(lambda: len(b.values) >= 40)
    lost = [(event.start, event.end) for event in events if isinstance(event, DataLost)]
    assert sorted(b.values) == list(range(60, 100))
    assert lost[0][0] == 10
    assert lost[-1][1] == 60
    assert all(end == start for (_, end), (start, _) in pairwise(lost))


def test_an_ack_after_the_block_was_given_back_is_refused(settings: Settings, place: TopicPartition) -> None:
    send(settings, place, 5)
    with opened(settings, place, "a") as messages:
        message = next(iter(messages))

    with pytest.raises(Fenced, match="passed on"):
        message.ack()
