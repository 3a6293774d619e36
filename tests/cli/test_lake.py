"""`penstock lake`, as people type it: a run and those who meet it, on a real broker and a real Spark."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
import pytest
from real_kafka import append, new_topic, settings_for, unique

from penstock.broker import Embedded
from penstock.kafka.topics import Admin
from penstock.values import TopicPartition

PENSTOCK = [sys.executable, "-m", "penstock"]
LIMIT_S = 240.0


class Land:
    """A folder with a configuration, and a topic to land."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder, self.kafka = folder, settings_for(bootstrap)
        with Admin(self.kafka) as admin:
            self.topic = new_topic(admin, partitions=1)
        pipeline = (
            f'topic = "{self.topic}"\ncolumns = "id BIGINT"\nallowed_latency = "500ms"\nmax_messages_per_batch = 1\n'
        )
        (folder / "penstock.toml").write_text(
            f'[kafka]\nbootstrap_servers = "{bootstrap}"\n'
            f'[claims]\ntopic = "{unique("claims")}"\npartitions = 1\nheartbeat = "3s"\n'
            f'[lake]\nmaster = "local[1]"\ndriver_memory = "1g"\n'
            f'[lake.orders]\napp_id = "orders"\ntable = "lake/orders"\n{pipeline}'
            f'[lake.others]\napp_id = "others"\ntable = "lake/orders/"\n{pipeline}'
            f'[lake.nowhere]\napp_id = "nowhere"\ntable = "lake/nowhere"\n{pipeline.replace(self.topic, "nothing")}'
        )

    def send(self, *ids: int) -> None:
        append(self.kafka, TopicPartition(self.topic, 0), *(json.dumps({"id": each}).encode() for each in ids))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PENSTOCK, "lake", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        done = self.run("status", "orders", "--json")
        assert done.returncode == 0, done.stderr
        (pipeline,) = json.loads(done.stdout)["pipelines"]
        return dict(pipeline)


class Child:
    """A command that prints NDJSON, and everything that it has said."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.said: list[dict[str, Any]] = []
        self._lines: Queue[str] = Queue()
        self._talk: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for(self, event: str, is_it: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            try:
                document = json.loads(self._lines.get(timeout=1))
            except Empty:
                assert self.process.poll() is None, f"it ended with {self.process.returncode}: {''.join(self._talk)}"
                continue
            self.said.append(document)
            if document["event"] == event and is_it(document):
                return dict(document)
        raise AssertionError(f"it did not say {event!r}: {self.said[-5:]}, {''.join(self._talk)}")

    def ended(self) -> int:
        return self.process.wait(LIMIT_S)

    def end(self) -> None:
        for each in [*psutil.Process(self.process.pid).children(recursive=True)] if self.process.poll() is None else []:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._lines.put(line)
        except ValueError:
            return  # closed under our hands, at the end

    def _listen(self) -> None:
        assert self.process.stderr is not None
        try:
            self._talk.extend(self.process.stderr)
        except ValueError:
            return


@pytest.fixture
def land(penstock_broker: Embedded, tmp_path: Path) -> Land:
    return Land(tmp_path, penstock_broker.bootstrap)


@pytest.fixture
def started(land: Land) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(*command: str) -> Child:
        children.append(Child(list(command), land.folder))
        return children[-1]

    yield start
    for child in children:
        child.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_run_lands_and_is_met_by_others_until_it_is_stopped_and_its_standby_takes_over(
    land: Land, started: Callable[..., Child]
) -> None:
    land.send(*range(10))
    port = free_port()
    first = started(*PENSTOCK, "lake", "run", "orders", "--json", "--metrics-port", str(port))

    landed = first.wait_for("lake landed")
    assert (landed["pipeline"], landed["rows"], landed["version"]) == ("orders", 10, 1)
    first.wait_for("lake progressed", lambda told: told["rows"] == 10 and told["state"] == "running")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    assert 'penstock_lake_rows_total{pipeline="orders"} 10.0' in metrics
    assert 'penstock_lake_commit_seconds_count{pipeline="orders"} 1' in metrics
    assert 'penstock_lake_lag_seconds{pipeline="orders"}' in metrics
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
        assert json.load(answer)["checks"] == {"pipeline orders": "ok"}

    # Status needs no Spark, and says who runs it.
    began = time.monotonic()
    seen = land.status()
    assert time.monotonic() - began < 30
    (table,) = seen["tables"]
    assert (table["version"], table["rows"], table["files"]) == (1, 10, 1)
    assert table["mean_file_bytes"] == table["bytes"] > 0
    assert seen["run_by"].endswith(f"pid{first.process.pid}")
    assert [(each["stored"], each["end"], each["lag_messages"]) for each in seen["partitions"]] == [(9, 10, 0)]

    # Whoever would write to the table meanwhile is refused: another app_id, an operator.
    rival = land.run("run", "others")
    assert rival.returncode == 6, rival.stderr
    assert f"pid{first.process.pid}) has lake-table/orders-" in rival.stderr
    for refused in (
        land.run("rewind", "orders", "--to-version", "0", "--yes"),
        land.run("replay-dead", "orders"),
    ):
        assert refused.returncode == 6, refused.stderr
        assert "pipeline orders is at work" in refused.stderr

    # A standby waits; SIGTERM ends the first, and nothing of it is left.
    second = started(sys.executable, "-m", "penstock.lake", "orders", "--json", "--standby")
    second.wait_for("lake pipeline waits")
    javas = psutil.Process(first.process.pid).children(recursive=True)
    assert javas
    land.send(*range(10, 15))
    first.wait_for("lake landed", lambda told: told["rows"] == 5)
    first.process.send_signal(signal.SIGTERM)
    assert first.ended() == 0
    # Spark's own helpers end a moment after it.
    assert psutil.wait_procs(javas, timeout=60)[1] == []

    second.wait_for("lake pipeline started")
    land.send(*range(15, 20))
    second.wait_for("lake landed", lambda told: told["rows"] == 5)
    # Its Java hangs, and the stop waits for it. Asked again it ends at once, and Java with it.
    javas = [each for each in psutil.Process(second.process.pid).children(recursive=True) if each.name() == "java"]
    assert javas
    for java in javas:
        java.suspend()
    second.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        second.process.wait(3)
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(20) == 128 + signal.SIGTERM
    assert psutil.wait_procs(javas, timeout=60)[1] == []
    (table,) = land.status()["tables"]
    assert table["rows"] == 20


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_all_pipelines_run_in_one_spark_and_one_that_fails_is_named_at_the_end(land: Land) -> None:
    land.send(*range(10))

    done = land.run("run", "--once", "--json")

    assert done.returncode == 3, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    rows = {told["pipeline"]: told["rows"] for told in said if told["event"] == "lake pipeline ended"}
    # Two app_ids in one process may share a table.
    assert rows == {"orders": 10, "others": 10}
    assert "1 of 3 pipelines failed: nowhere: there is no topic nothing" in done.stderr
    everything = land.run("status")
    assert everything.returncode == 0
    assert "nowhere: there is no topic nothing" in everything.stderr
    assert "20" in everything.stdout
    offsets = json.loads(land.run("offsets", "orders", "--json").stdout)
    assert [(each["stored"], each["next"], each["end"]) for each in offsets["partitions"]] == [(9, 10, 10)]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "order"], 3, "did you mean orders?"),
        (["status", "zzz"], 3, "there are nowhere, orders, others"),
        (["rewind", "orders"], 2, "give --to-version N or --to-offsets"),
        (["rewind", "orders", "--to-version", "1"], 2, "add --yes"),
        (["rewind", "orders", "--to-offsets", "a=b", "--yes"], 2, "write --to-offsets 0=123,1=456"),
        (["run", "orders", "--embedded"], 2, "leave one out"),
    ],
)
def test_what_cannot_be_done_is_said_before_spark_is_started(
    land: Land, arguments: list[str], code: int, said: str
) -> None:
    done = land.run(*arguments)

    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_kafka_or_without_a_pipeline_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = [*PENSTOCK, "lake", "run"]

    bare = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    (tmp_path / "penstock.toml").write_text('[lake.a]\napp_id = "a"\ntopic = "t"\ntable = "x"\n')
    no_kafka = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert (bare.returncode, no_kafka.returncode) == (2, 2)
    assert "[lake.orders]" in bare.stderr
    assert "--embedded" in no_kafka.stderr


@pytest.mark.parametrize("command", ["run", "status", "offsets", "rewind", "maintain", "replay-dead"])
def test_help_of_the_lake_imports_no_spark(tmp_path: Path, command: str) -> None:
    code = (
        "import sys, penstock.cli.main as m\n"
        f"try: m.main(['lake', {command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('pyspark', 'delta', 'confluent_kafka', 'rich') if n in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("Usage:")
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_file_for_spark_submit_says_where_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.lake", "--path"], capture_output=True, text=True, timeout=60, check=True
    )

    assert Path(done.stdout.strip()).is_file()
