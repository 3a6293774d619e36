"""`penstock work --metrics-port`: what its processes serve, and what becomes of a port that is taken."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_kafka import eventually, settings_for, unique
from work_command import IDLE, working

from penstock.broker import Embedded
from penstock.cli.work import metrics_ports
from penstock.cli.work_health import SILENCE_MAX_S, STILL_MAX_S, Watch
from penstock.errors import Halted, PenstockError, UsageError
from penstock.observe.events import MessagesAcked, QueueCounted
from penstock.queue.running import Station
from penstock.queue.sending import Sender
from penstock.queue.supervise import Terms

COUNT = 400

SHOP = """
import penstock

app = penstock.App("shop")
orders = app.queue("{topic}")

@orders.handler()
def charge(order: int) -> None:
    pass
"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_ports(count: int) -> int:
    """The first of so many in a row that nobody has."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            first: int = server.getsockname()[1]
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first


def answer(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 if nobody listens there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as given:
            return given.status, given.read().decode()
    except urllib.error.HTTPError as refused:
        with closing(refused):
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def sample(port: int, metric: str, **labels: str) -> float:
    _, text = answer(port, "/metrics")
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return sum(each.value for each in samples if each.name == metric and each.labels == labels)


def test_two_processes_serve_what_each_has_done_and_none_begins_where_a_port_is_taken(
    penstock_broker: Embedded, tmp_path: Path
) -> None:
    topic, first = unique("orders"), free_ports(2)
    ports = [first, first + 1]
    (tmp_path / "shop.py").write_text(SHOP.format(topic=topic))
    (tmp_path / "penstock.toml").write_text(
        f"[kafka]\nbootstrap_servers = '{penstock_broker.bootstrap}'\n"
        f"[claims]\ntopic = '{unique('claims')}'\npartitions = 1\nheartbeat = '500ms'\n[queue]\npartitions = 4\n"
    )
    with working(tmp_path, "shop:app", "--processes", "2", "--metrics-port", str(first)) as work:
        work.wait_for("process ready", 2)
        eventually(lambda: [answer(port, "/readyz")[0] for port in ports] == [200, 200], within_s=60)
        with Sender(settings_for(penstock_broker.bootstrap), topic) as sender:
            sender.send_many(range(COUNT))

        def acked() -> list[float]:
            return [sample(port, "penstock_messages_acked_total", queue=topic) for port in ports]

        eventually(lambda: sum(acked()) >= COUNT, within_s=60)
        assert sum(acked()) == COUNT
        assert min(acked()) > 0
        for port in ports:
            assert json.loads(answer(port, "/healthz")[1]) == {"status": "ok", "checks": {"queues": "ok"}}

        with working(tmp_path, "shop:app", "--metrics-port", str(first + 1)) as late:
            assert late.end() == 1
            text = "".join(late.errors)
            assert text.count(f"error: port {first + 1} is not to be had: Address already in use") == 1
            assert "choose another --metrics-port" in text
            assert late.events == []
        work.process.terminate()

        assert work.end() == 0, work.errors
        assert work.named("process died") == []
        assert [answer(port, "/healthz")[0] for port in ports] == [0, 0]


def test_a_port_that_is_free_is_chosen_for_0_and_said(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(IDLE.format(begins="pass", ends="pass"))
    with working(tmp_path, "shop:app", "--processes", "2", "--metrics-port", "0") as work:

        def ports() -> set[int]:
            return set(map(int, re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", "".join(work.errors))))

        work.wait_for("process ready", 2)
        eventually(lambda: len(ports()) == 2, within_s=60)
        for port in ports():
            assert answer(port, "/healthz")[0] == 200
            assert "penstock_build_info" in answer(port, "/metrics")[1]


def test_a_process_whose_port_was_taken_meanwhile_fails_before_it_begins(tmp_path: Path, taken: int) -> None:
    """Its supervisor gives up after some of them, as with all that never come to work."""
    (tmp_path / "shop.py").write_text(IDLE.format(begins="pathlib.Path('begun').touch()", ends="pass"))
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            done = subprocess.run(
                [sys.executable, "-m", "penstock.cli.work_child", "shop:app", str(theirs.fileno()), "1000", str(taken)],
                cwd=tmp_path,
                pass_fds=[theirs.fileno()],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        said = ours.recv(100)

    assert (done.returncode, said) == (1, b"failed\n")
    assert f"error: port {taken} is not to be had" in done.stderr
    assert "next:  choose another --metrics-port" in done.stderr
    assert not (tmp_path / "begun").exists()


def test_a_process_that_is_started_again_serves_where_the_one_before_it_did(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(IDLE.format(begins="pass", ends="pass"))
    port = free_ports(1)
    with working(tmp_path, "shop:app", "--metrics-port", str(port)) as work:
        [first] = work.wait_for("process ready")
        eventually(lambda: answer(port, "/readyz")[0] == 200)
        os.kill(first["pid"], signal.SIGKILL)
        work.wait_for("process ready", 2)
        assert answer(port, "/healthz")[0] == 200


@pytest.mark.long
def test_a_process_that_finds_its_port_taken_again_and_again_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(IDLE.format(begins="pass", ends="pass"))
    port = free_ports(1)
    with working(tmp_path, "shop:app", "--metrics-port", str(port)) as work:
        [first] = work.wait_for("process ready")
        # While it cannot start another one.
        work.process.send_signal(signal.SIGSTOP)
        os.kill(first["pid"], signal.SIGKILL)
        eventually(lambda: answer(port, "/healthz")[0] == 0)
        with socket.create_server(("127.0.0.1", port)):
            work.process.send_signal(signal.SIGCONT)
            assert work.end() == 1

        assert len(work.named("process died")) == 1 + Terms().failures_max
        assert "".join(work.errors).count(f"error: port {port} is not to be had") == Terms().failures_max


def test_the_ports_of_many_processes_are_one_after_the_other() -> None:
    assert metrics_ports(9_400, 3) == [9_400, 9_401, 9_402]
    assert metrics_ports(0, 2) == [0, 0]
    assert metrics_ports(None, 2) == [None, None]
    assert metrics_ports(65_534, 2) == [65_534, 65_535]
    with pytest.raises(UsageError, match=r"3 processes have no ports of their own from 65534 on.*up to 65533"):
        metrics_ports(65_534, 3)


# What a process says of itself


@dataclass
class Queue:
    """A queue at work, as far as it is looked at."""

    queue: str = "orders"
    is_running: bool = True
    stepped_s: float | None = None
    failure: PenstockError | None = None
    is_ready: threading.Event = field(default_factory=threading.Event)
    partitions: frozenset[int] = frozenset({0})


class Watched:
    """A watch at a time that does not pass by itself."""

    def __init__(self, *queues: Queue) -> None:
        self.now_s = 1_000.0
        self.stopping = threading.Event()
        self.watch = Watch(stopping=self.stopping, monotonic_s=lambda: self.now_s)
        self.queues = cast("list[Station]", list[Any](queues))

    def begin(self) -> Watch:
        self.watch.look_at(self.queues)
        return self.watch


def counted() -> QueueCounted:
    return QueueCounted(queue="orders", ready=0, leased=0, waiting=0, oldest_age_s=0.0)


def test_a_process_is_ready_when_all_its_queues_can_take_messages() -> None:
    orders, letters = Queue(), Queue()
    watched = Watched(orders, letters)

    assert watched.watch.what_hinders() == "the application is being loaded"
    watch = watched.begin()
    orders.is_ready.set()
    assert watch.what_hinders() == "1 of 2 queues have no partitions to take from"
    letters.is_ready.set()
    assert watch.what_hinders() is None
    orders.partitions = frozenset()
    assert watch.what_hinders() == "1 of 2 queues have no partitions to take from"
    orders.partitions = frozenset({3})
    assert watch.what_hinders() is None
    watched.stopping.set()
    assert watch.what_hinders() == "it is stopping"


def test_a_process_of_whose_queues_nothing_is_heard_is_not_ready_until_it_is_but_lives() -> None:
    orders = Queue()
    orders.is_ready.set()
    watched = Watched(orders)
    watch = watched.begin()

    watched.now_s += SILENCE_MAX_S
    assert watch.what_hinders() is None
    watched.now_s += 1
    watch(MessagesAcked(queue="orders", count=1))
    assert watch.what_hinders() == (
        "nothing was counted for 61 s: the broker is out of reach, or a worker stands still"
    )
    # Another process would have the same broker.
    assert watch.what_failed() is None
    watch(counted())
    assert watch.what_hinders() is None


def test_a_queue_that_failed_is_worth_a_new_process_and_one_that_is_stopped_is_not() -> None:
    orders, letters = Queue(), Queue("letters")
    watched = Watched(orders, letters)
    assert watched.watch.what_failed() is None
    watch = watched.begin()
    assert watch.what_failed() is None

    letters.failure = Halted(ledger="l", partition=0, offset=7, reason="password=canary", next_step="")
    assert watch.what_failed() == "queue letters has stopped with Halted: the log says why"
    letters.failure, letters.is_running = None, False
    assert watch.what_failed() == "the worker of queue letters has ended"
    watched.stopping.set()
    assert watch.what_failed() is None


def test_a_worker_that_no_longer_goes_round_is_worth_a_new_process() -> None:
    orders = Queue()
    watched = Watched(orders)
    watch = watched.begin()

    watched.now_s += 10 * STILL_MAX_S
    assert watch.what_failed() is None, "it has not begun: it may wait for its broker"
    orders.stepped_s = watched.now_s
    watched.now_s += STILL_MAX_S
    assert watch.what_failed() is None
    watched.now_s += 1
    assert watch.what_failed() == "the worker of queue orders stands still since 181 s"
