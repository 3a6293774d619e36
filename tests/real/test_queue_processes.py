"""Queues in processes that die, freeze, stop, come and go."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_accounts import renewals
from queue_consumers import PARTITIONS, Consumer, lag, letters, queue_settings, queue_topic, sender, working
from queue_process import Process, processes
from real_kafka import eventually

from penstock import Message, Outgoing
from penstock.broker import Embedded
from penstock.kafka.topics import Admin
from penstock.settings import Settings


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return queue_settings(penstock_broker)


@pytest.fixture
def name(settings: Settings) -> Iterator[str]:
    with queue_topic(settings) as name:
        yield name


def test_messages_of_a_killed_process_are_redelivered_and_no_others(
    settings: Settings, name: str, tmp_path: Path
) -> None:
    options = {"options": {"lease": "2s"}, "handler": {"concurrency": 4}}
    with sender(settings, name) as queue, processes(settings, name, tmp_path, "a", **options) as [a]:
        queue.send_many([{"n": number} for number in range(50)])
        eventually(lambda: len([line for line in a.lines() if line.what == "end"]) == 50)
        eventually(lambda: lag(settings, name) == 0)  # the log knows of all these acks
        queue.send_many([{"n": number, "do": "sleep", "s": 60} for number in range(50, 58)])
        eventually(lambda: len(a.lines()) == 104)
        a.end()
        killed = time.monotonic()
        with processes(settings, name, tmp_path, "b", **options) as [b]:
            eventually(lambda: len(b.lines()) >= 4)
            redelivered_s = time.monotonic() - killed

    begun = {line.n for line in b.lines()}
    assert begun <= set(range(50, 58))
    assert redelivered_s < 15


def test_the_ack_of_a_process_that_was_frozen_beyond_its_lease_does_not_count(
    settings: Settings, name: str, tmp_path: Path
) -> None:
    options = {"options": {"lease": "2s"}}
    with sender(settings, name) as queue, processes(settings, name, tmp_path, "a", **options) as [a]:
        queue.send({"n": 1, "do": "sleep", "s": 3})
        eventually(lambda: a.lines())
        a.child.send_signal(signal.SIGSTOP)
        try:
            with processes(settings, name, tmp_path, "b", **options) as [b]:
                eventually(lambda: b.lines(), within_s=60)
                a.child.send_signal(signal.SIGCONT)
                eventually(lambda: len(a.lines()) == 2, within_s=60)
                eventually(lambda: len(b.lines()) == 2, within_s=60)
                eventually(lambda: lag(settings, name) == 0, within_s=60)
        finally:
            a.child.send_signal(signal.SIGCONT)

    assert [line.what for line in a.lines()] == ["begin", "lost"]
    assert [line.what for line in b.lines()] == ["begin", "end"]
    assert b.lines()[0].token > a.lines()[0].token


def test_a_message_that_kills_its_process_ends_alone_in_the_dead_letters(
    settings: Settings, name: str, tmp_path: Path
) -> None:
    options = {"options": {"lease": "1s", "attempts_max": 2, "backoff": "50ms"}}
    running: list[Process] = []
    with sender(settings, name) as queue:
        queue.send_many(
            [Outgoing({"n": number, "do": "exit" if number == 77 else ""}, key="k") for number in range(200)]
        )

        def is_over() -> bool:
            if not running or running[-1].child.poll() is not None:
                running.append(Process(settings, name, tmp_path / f"p{len(running)}", **options))
            return lag(settings, name) == 0

        try:
            eventually(is_over, within_s=120)
        finally:
            for process in running:
                process.end()

    ended = Counter(line.n for process in running for line in process.lines() if line.what == "end")
    assert set(ended) == set(range(200)) - {77}
    assert [value for value, _ in letters(settings, name)] == [b'{"n":77,"do":"exit"}']
    assert [headers["penstock-attempts"] for _, headers in letters(settings, name)] == [b"2"]


def test_a_task_outlives_the_hand_over_of_its_partition_and_if_it_fails_the_new_owner_tries_again(
    settings: Settings, name: str
) -> None:
    gate = threading.Event()

    def work(message: Message) -> None:
        if message.attempt == 1:
            assert gate.wait(60)
        if message.payload < PARTITIONS and message.attempt == 1:  # one in every partition
            raise ValueError

    a, b = Consumer(settings, name, do=work, concurrency=8), Consumer(settings, name, do=work, concurrency=8)
    with working(a):
        a.queue.send_many(range(8))
        eventually(lambda: len(a.seen) == 8)
        with working(b):
            eventually(lambda: len(a.partitions) == len(b.partitions) == PARTITIONS // 2)
            # Renewed every third of a lease, although the claims are gone: this takes longer than a lease.
            before = renewals(settings, name)
            eventually(lambda: all(count >= before[place] + 4 for place, count in renewals(settings, name).items()))
            gate.set()
            eventually(lambda: len(a.seen) + len(b.seen) == 12)
            eventually(lambda: lag(settings, name) == 0)

    assert Counter(a.seen + b.seen) == Counter(range(8)) + Counter(range(PARTITIONS))
    assert len(b.seen) == PARTITIONS // 2


def test_a_topic_that_grows_is_worked_on_as_a_whole(settings: Settings, name: str) -> None:
    consumer = Consumer(settings, name)
    with working(consumer):
        eventually(lambda: len(consumer.partitions) == PARTITIONS)
        with Admin(settings.kafka) as admin:
            admin.grow(name, 2 * PARTITIONS)
        eventually(lambda: len(consumer.partitions) == 2 * PARTITIONS)
        with sender(settings, name) as queue:
            queue.send_many(range(80))
            eventually(lambda: len(consumer.seen) == 80)

    assert sorted(consumer.seen) == list(range(80))


def test_a_process_that_is_asked_to_stop_finishes_what_it_has_begun_and_gives_back_the_rest(
    settings: Settings, name: str, tmp_path: Path
) -> None:
    options = {"options": {"lease": "30s"}, "handler": {"concurrency": 2}}
    with sender(settings, name) as queue, processes(settings, name, tmp_path, "a", **options) as [a]:
        queue.send_many([{"n": number, "do": "sleep", "s": 2} for number in range(20)])
        eventually(lambda: len(a.lines()) >= 2)
        a.child.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        with processes(settings, name, tmp_path, "b", **(options | {"handler": {"concurrency": 20}})) as [b]:
            eventually(lambda: len([line for line in b.lines() if line.what == "end"]) >= 16, within_s=60)
            done_s = time.monotonic() - asked
            assert a.child.wait(60) == 0

    finished = Counter(line.n for process in (a, b) for line in process.lines() if line.what == "end")
    assert set(finished.values()) == {1}
    assert {line.attempt for line in b.lines()} == {1}
    assert done_s < 20
