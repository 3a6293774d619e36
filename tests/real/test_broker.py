"""One embedded broker as a real process: its start, its figures, its ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from real_kafka import eventually
from real_process import is_gone, started

from penstock.broker import Embedded
from penstock.broker.datafolder import node_folder
from penstock.broker.guard import GRACE_S
from penstock.broker.ports import free_ports
from penstock.broker.running import running_on
from penstock.errors import BrokerFailed, BrokerRunning, UsageError
from penstock.observe import Event, subscribed
from penstock.observe.events import BrokerStarted, BrokerStopped

READY_TARGET_S, READY_MAX_S = 6.0, 20.0
RESIDENT_MAX_MB = 450.0
GONE_MAX_S = 10.0
"""How long a broker may outlive the process that started it."""


def _make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)


def _produce(bootstrap: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, str(value))
    assert producer.flush(30) == 0


def _values(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[int] = []
    deadline = time.monotonic() + 60
    while len(read) < count and time.monotonic() < deadline:
        read += [int(message.value()) for message in consumer.consume(count, 0.2) if not message.error()]
    consumer.close()
    return read


def test_a_broker_is_ready_at_once_small_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Embedded().__enter__().close()  # whatever is made only once is made now
    events: list[Event] = []
    began = time.monotonic()

    with subscribed(events.append), Embedded() as kafka:
        ready_s = time.monotonic() - began
        _make_topic(kafka.bootstrap, "small")
        _produce(kafka.bootstrap, "small", range(10_000))
        (node,) = kafka.nodes
        assert node.pid is not None
        pid, data = node.pid, kafka.data
        guard = psutil.Process(pid).ppid()
        resident_mb = psutil.Process(pid).memory_info().rss / 1e6
        assert "Kafka Server started" in kafka.log_tail(200)

    with capsys.disabled():
        print(f"\n  ready in {ready_s:.2f} s (target {READY_TARGET_S:g}), resident {resident_mb:.0f} MB ", end="")
    assert ready_s < READY_MAX_S
    assert resident_mb < RESIDENT_MAX_MB
    assert [type(event) for event in events] == [BrokerStarted, BrokerStopped]
    assert is_gone(pid)
    assert is_gone(guard)
    assert not data.exists()


def test_a_restart_on_another_port_has_lost_nothing_even_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "dä ta, 1"
    with Embedded(data=data) as kafka:
        first_port = kafka.bootstrap
        _make_topic(kafka.bootstrap, "kept")
        _produce(kafka.bootstrap, "kept", range(100))

    with Embedded(data=data) as kafka:
        assert kafka.bootstrap != first_port
        _produce(kafka.bootstrap, "kept", range(100, 200))
        kafka.kill(1)
        assert not kafka.nodes[0].is_running
        with pytest.raises(UsageError, match=r"start\(1\)"):
            kafka.kill(1)
        kafka.start(1)
        assert _values(kafka.bootstrap, "kept", 200) == list(range(200))
        kafka.kill(1)

    with Embedded(data=data) as kafka:
        assert _values(kafka.bootstrap, "kept", 200) == list(range(200))


def test_a_second_start_on_the_same_data_names_the_pid_and_harms_nothing(tmp_path: Path) -> None:
    with Embedded(data=tmp_path / "data") as kafka:
        pid = kafka.nodes[0].pid
        with pytest.raises(BrokerRunning, match=f"pid {pid}.*penstock broker stop --data") as refused:
            Embedded(data=tmp_path / "data").start()
        assert refused.value.pid == pid
        assert kafka.nodes[0].is_running
        _make_topic(kafka.bootstrap, "unharmed")


def test_a_stale_pid_is_no_obstacle(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Embedded(data=data) as kafka:
        kafka.kill(1)
    # Worse than stale: the pid lives, but it is ours.
    (node_folder(data, 1) / "broker.pid").write_text(f"{os.getpid()}\n")

    assert running_on(data) is None
    with Embedded(data=data) as kafka:
        running = running_on(data)
        assert running is not None
        assert running.pids == {1: kafka.nodes[0].pid}


def test_a_port_that_is_taken_is_named(penstock_broker: Embedded) -> None:
    port = penstock_broker.nodes[0].port

    with pytest.raises(BrokerFailed, match=f"port {port} .* is taken.*--port 0"):
        Embedded(port=port).start()


def test_a_port_that_is_lost_in_the_last_moment_is_replaced_by_another(
    penstock_broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = penstock_broker.nodes[0].port
    offered = [[taken, *free_ports(1)], free_ports(2)]
    monkeypatch.setattr("penstock.broker.embedded.free_ports", lambda _count: offered.pop(0))
    monkeypatch.setattr("penstock.broker.embedded.is_free", lambda _port: True)

    with Embedded() as kafka:
        assert not offered
        assert kafka.nodes[0].is_running


def test_a_broker_that_does_not_come_up_says_why_with_the_end_of_its_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Embedded(data=data) as kafka:
        kafka.kill(1)
    meta = node_folder(data, 1) / "kafka" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))

    with pytest.raises(BrokerFailed) as failed:
        Embedded(data=data).start()

    assert "before it was ready" in failed.value.why
    assert "node" in failed.value.log_tail
    assert "7" in failed.value.log_tail
    assert str(node_folder(data, 1) / "broker.log") in str(failed.value)
    assert running_on(data) is None


def test_a_java_that_cannot_even_begin_is_reported_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.recipe.java_options", lambda *, heap_mb: ("-XX:+NoSuchOption",))

    with pytest.raises(BrokerFailed, match="NoSuchOption"):
        Embedded(data=tmp_path / "data").start()


_PARENT = """
import sys, json, time
from penstock.broker import Embedded
kafka = Embedded(data=sys.argv[1] or None)
with kafka:
    print(json.dumps([kafka.nodes[0].pid, str(kafka.data)]), flush=True)
    time.sleep(600)
"""


@contextmanager
def _parent(data: Path | None) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A process with a broker in a `with`, the broker's pid, and its data folder."""
    command = [sys.executable, "-c", _PARENT, str(data or "")]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid, folder = json.loads(process.stdout.readline())
        yield process, pid, Path(folder)


def test_a_broker_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    with _parent(None) as (process, pid, data):
        guard = psutil.Process(pid).ppid()
        process.kill()
        process.wait()
        began = time.monotonic()

        eventually(lambda: is_gone(pid) and is_gone(guard), within_s=GONE_MAX_S)
        eventually(lambda: not data.exists(), within_s=GONE_MAX_S)
        assert time.monotonic() - began < GONE_MAX_S


def test_a_paused_broker_does_not_outlive_its_parent_either(tmp_path: Path) -> None:
    with _parent(tmp_path / "data") as (process, pid, data):
        os.kill(pid, signal.SIGSTOP)
        process.kill()

        eventually(lambda: is_gone(pid) and running_on(data) is None, within_s=GONE_MAX_S + GRACE_S)
        assert data.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end the child of a killed process by itself")
def test_a_broker_does_not_outlive_its_guard(tmp_path: Path) -> None:
    with _parent(tmp_path / "data") as (_, pid, data):
        psutil.Process(psutil.Process(pid).ppid()).kill()

        eventually(lambda: is_gone(pid) and running_on(data) is None, within_s=GONE_MAX_S)


def test_an_interrupt_ends_the_broker_in_order(tmp_path: Path) -> None:
    with _parent(tmp_path / "data") as (process, pid, data):
        process.send_signal(signal.SIGINT)
        process.wait(60)

        assert is_gone(pid)
        assert (node_folder(data, 1) / "kafka" / ".kafka_cleanshutdown").exists()


def test_an_embedded_broker_that_was_not_started_says_so() -> None:
    with pytest.raises(UsageError, match="was not started"):
        _ = Embedded().bootstrap
    with pytest.raises(UsageError, match="data folder"):
        Embedded(outlives_us=True)
