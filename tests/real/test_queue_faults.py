"""Queues under faults: processes killed between any two effects, storms of hand-overs, brokers that go."""

from __future__ import annotations

import ast
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from queue_accounts import check_accounts, fates, messages_in
from queue_consumers import PARTITIONS, Consumer, lag, letters, queue_settings, queue_topic, sender, working
from queue_process import Line, Process, processes
from real_kafka import eventually

import penstock
from penstock import Message
from penstock.broker import Embedded
from penstock.errors import NotAllSent, NotSent, OutcomeUnknown, TransientError
from penstock.settings import QueueSettings, Settings

SOURCES = Path(penstock.__file__).parent / "queue"


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return queue_settings(penstock_broker)


@pytest.fixture
def name(settings: Settings) -> Iterator[str]:
    with queue_topic(settings) as name:
        yield name


def crash_points() -> list[str]:
    calls = (
        node
        for path in SOURCES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "crash_point"
    )
    return sorted({ast.literal_eval(call.args[0]) for call in calls})


def numbers_in(settings: Settings, name: str) -> dict[tuple[int, int], int]:
    """Which message is where."""
    found = {place: json.loads(each.value() or b"") for place, each in messages_in(settings, name).items()}
    return {place: each["n"] if isinstance(each, dict) else each for place, each in found.items()}


# Kills

COUNT = 48
LOST = "queue.lost"
TERMS = {"options": {"lease": "1s", "attempts_max": 3, "backoff": "50ms"}, "handler": {"concurrency": 6}}


def send_orders(settings: Settings, name: str) -> None:
    """Slow ones, one that fails once and one that always does."""
    orders: list[dict[str, object]] = [{"n": number, "do": "sleep", "s": 0.15} for number in range(COUNT)]
    orders[5] = {"n": 5, "do": "fail", "times": 1}
    orders[6] = {"n": 6, "do": "fail"}
    with sender(settings, name) as queue:
        queue.send_many(orders)


def states(settings: Settings, name: str, *workers: Process) -> Counter[str]:
    lines = [line for worker in workers for line in worker.lines()]
    return check_accounts(lines, fates(settings, name), numbers_in(settings, name))


def attempts_of_the_dead(settings: Settings, name: str) -> list[bytes | None]:
    """Of each dead message; a second copy of one, by whoever thought that it was missing, says the same."""
    copies = {
        (headers["penstock-origin-partition"], headers["penstock-origin-offset"], headers["penstock-attempts"])
        for _, headers in letters(settings, name)
    }
    return [attempts for _, _, attempts in copies]


@pytest.mark.parametrize("point", [point for point in crash_points() if point != LOST])
def test_a_process_killed_at_any_crash_point_loses_nothing(
    settings: Settings, name: str, tmp_path: Path, point: str
) -> None:
    send_orders(settings, name)
    with processes(settings, name, tmp_path, "a", die_at=point, passes=1, **TERMS) as [a]:
        assert a.child.wait(60) == -signal.SIGKILL
    assert states(settings, name, a)["pending"], "it was killed too late to be of interest"
    with processes(settings, name, tmp_path, "b", **TERMS) as [b]:
        eventually(lambda: lag(settings, name) == 0, within_s=90)

    assert states(settings, name, a, b) == {"acked": COUNT - 1, "dead": 1}
    assert attempts_of_the_dead(settings, name) == [b"3"]


def test_a_process_killed_when_it_hears_of_a_lost_lease_loses_nothing(
    settings: Settings, name: str, tmp_path: Path
) -> None:
    assert LOST in crash_points()
    send_orders(settings, name)
    with processes(settings, name, tmp_path, "a", die_at=LOST, **TERMS) as [a]:
        eventually(lambda: a.lines())
        a.child.send_signal(signal.SIGSTOP)
        with processes(settings, name, tmp_path, "b", **TERMS) as [b]:
            eventually(lambda: lag(settings, name) == 0, within_s=90)
            a.child.send_signal(signal.SIGCONT)
            assert a.child.wait(60) == -signal.SIGKILL

    assert states(settings, name, a, b) == {"acked": COUNT - 1, "dead": 1}
    assert attempts_of_the_dead(settings, name) == [b"3"]


# Hand-overs


def storm(settings: Settings, name: str, folder: Path, *, storm_s: float, task_s: float) -> None:
    """A process joins or leaves every two seconds; the first one, with the long tasks, leaves too."""
    given = {"options": {"lease": "2s"}, "handler": {"concurrency": 8}}
    long_tasks = [{"n": number, "do": "sleep", "s": task_s} for number in range(PARTITIONS)]
    sent = list(range(PARTITIONS))
    with ExitStack() as stack, sender(settings, name) as queue:
        queue.send_many(long_tasks)
        [first] = stack.enter_context(processes(settings, name, folder, "first", **given))
        eventually(lambda: {line.n for line in first.lines()} == set(range(PARTITIONS)))
        workers, there, ends_s = [first], [first], time.monotonic() + storm_s
        turn_s = time.monotonic()
        while time.monotonic() < ends_s:
            fresh = list(range(len(sent), len(sent) + 20))
            queue.send_many([{"n": number} for number in fresh])
            sent += fresh
            time.sleep(0.1)
            if time.monotonic() >= turn_s:
                turn_s += 2
                if len(there) < 3:
                    [new] = stack.enter_context(processes(settings, name, folder, f"w{len(workers)}", **given))
                    workers.append(new)
                    there.append(new)
                else:
                    there.pop(0).child.send_signal(signal.SIGTERM)
        eventually(lambda: lag(settings, name) == 0, within_s=90)
        gone = [worker for worker in workers if worker not in there]
        assert first in gone
        assert [worker.child.wait(60) for worker in gone] == [0] * len(gone)

    lines = [line for worker in workers for line in worker.lines()]
    assert [line.what for line in lines if line.n < PARTITIONS] == ["begin"] * PARTITIONS + ["end"] * PARTITIONS
    assert {line.n for line in first.lines()} >= set(range(PARTITIONS))
    # Everybody who left did so in good order, so nothing was begun twice.
    assert Counter(line.n for line in lines if line.what == "end") == Counter(sent)
    assert check_accounts(lines, fates(settings, name), numbers_in(settings, name)) == {"acked": len(sent)}


def test_long_tasks_outlive_a_storm_of_hand_overs_and_run_once(settings: Settings, name: str, tmp_path: Path) -> None:
    storm(settings, name, tmp_path, storm_s=12, task_s=8)


@pytest.mark.long
def test_longer_tasks_outlive_a_minute_of_hand_overs_and_run_once(
    settings: Settings, name: str, tmp_path: Path
) -> None:
    storm(settings, name, tmp_path, storm_s=60, task_s=25)


# Many


def many(settings: Settings, name: str, count: int) -> None:
    """One of a hundred fails once, one of a thousand always."""
    settings = replace(settings, queue=QueueSettings(snapshot_every=10**9))
    lines: list[Line] = []

    def work(message: Message) -> None:
        n: int = message.payload
        if n % 1_000 == 1 or (n % 100 == 0 and message.attempt == 1):
            lines.append(Line(n, message.attempt, message.token, "begin"))
            raise ValueError("it fails")
        lines.append(Line(n, message.attempt, message.token, "end"))

    consumers = [Consumer(settings, name, do=work, concurrency=4, attempts_max=3) for _ in range(2)]
    with sender(settings, name) as queue, working(*consumers):
        queue.send_many(range(count))
        eventually(lambda: lag(settings, name) == 0, within_s=60 + count / 1_000)

    books, numbers = fates(settings, name), numbers_in(settings, name)
    places = {number: place for place, number in numbers.items()}
    dead = range(1, count, 1_000)
    assert check_accounts(lines, books, numbers) == {"acked": count - len(dead), "dead": len(dead)}
    expected = Counter(range(count)) + Counter(range(0, count, 100)) + Counter(dict.fromkeys(dead, 2))
    assert Counter(line.n for line in lines) == expected
    assert {line.attempt for line in lines if line.n in dead} == {1, 2, 3}
    assert {(books[places[number]].failures, books[places[number]].copies) for number in dead} == {(2, 1)}
    assert Counter(value for value, _ in letters(settings, name)) == Counter(b"%d" % number for number in dead)


def test_of_fifty_thousand_messages_with_failures_every_one_is_accounted_for(settings: Settings, name: str) -> None:
    many(settings, name, 50_000)


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_of_a_million_messages_with_failures_every_one_is_accounted_for(settings: Settings, name: str) -> None:
    many(settings, name, 1_000_000)


# Brokers


@contextmanager
def load(settings: Settings, name: str) -> Iterator[list[int]]:
    """Messages all the time, meanwhile; the list has those whose sending was acknowledged."""
    certain: list[int] = []
    stop = threading.Event()

    def feed() -> None:
        number = 0
        with sender(settings, name) as queue:
            while not stop.wait(0.02):
                fresh = range(number, number + 10)
                number += 10
                with suppress(OutcomeUnknown, NotAllSent, NotSent, TransientError):
                    queue.send_many(fresh)
                    certain.extend(fresh)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield certain
    finally:
        stop.set()
        feeder.join()


def work_on_through(settings: Settings, name: str, trouble: Callable[[], None]) -> None:
    """Trouble in the middle of work: everything that was sent is handled and acked, once in the log."""
    lines: list[Line] = []
    consumers = [
        Consumer(settings, name, do=lambda m: lines.append(Line(m.payload, m.attempt, m.token, "end")))
        for _ in range(2)
    ]
    with working(*consumers):
        with load(settings, name) as certain:
            eventually(lambda: len(lines) > 500, within_s=60)
            trouble()
            before = len(certain)
            eventually(lambda: len(certain) > before + 500, within_s=90)
        last = len(certain)
        eventually(lambda: {line.n for line in lines} >= set(certain[:last]), within_s=90)
        eventually(lambda: lag(settings, name) == 0, within_s=90)

    numbers = numbers_in(settings, name)
    assert set(certain) <= set(numbers.values())
    assert check_accounts(lines, fates(settings, name), numbers) == {"acked": len(numbers)}


def test_a_broker_that_is_killed_and_comes_back_under_load_costs_nothing(tmp_path: Path) -> None:
    with Embedded(data=tmp_path / "kafka") as broker:
        settings = queue_settings(broker)

        def restart() -> None:
            broker.kill(1)
            broker.start(1)

        with queue_topic(settings) as name:
            work_on_through(settings, name, restart)


@pytest.mark.long
def test_a_leader_that_is_killed_under_load_costs_nothing_with_three_brokers() -> None:
    with Embedded(brokers=3) as cluster:
        settings = queue_settings(cluster)
        with queue_topic(settings) as name:
            work_on_through(settings, name, lambda: cluster.kill(1))
            cluster.start(1)
