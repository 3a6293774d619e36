"""`penstock broker`, as typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_process import is_gone, started

from penstock.broker import pidfile
from penstock.broker.probe import NOBODY, membership

PENSTOCK = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of its own; whatever broker a failed test leaves in it is ended."""
    yield tmp_path
    for folder in {pid_file.parent for pid_file in tmp_path.rglob("broker.pid")}:
        if (holder := pidfile.holder(folder)) and holder.pid:
            os.kill(holder.pid, signal.SIGKILL)


def _environ(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_BROKER")}
    return kept | {"XDG_STATE_HOME": str(home / "state"), "NO_COLOR": "1"}


def _run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PENSTOCK, "broker", *arguments]
    return subprocess.run(
        command, env=_environ(home), cwd=home, capture_output=True, text=True, timeout=120, check=False
    )


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def _port(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def test_a_background_broker_is_started_looked_at_and_stopped(home: Path) -> None:
    before = _run(home, "status", "--json")
    assert (before.returncode, _json(before)["state"]) == (3, "stopped")

    started = _run(home, "start", "--port", "0", "--json")
    assert started.returncode == 0, started.stderr
    document = _json(started)
    assert membership(_port(document["bootstrap"])).nodes == {1}
    assert document["data"].startswith(str(home / "state"))

    again = _run(home, "start", "--port", "0")
    assert again.returncode == 6
    assert f"pid {document['pids'][0]}" in again.stderr
    assert "penstock broker stop" in again.stderr

    status = _run(home, "status", "--json")
    assert status.returncode == 0
    seen = _json(status)
    assert (seen["state"], seen["bootstrap"], seen["pid"]) == ("running", document["bootstrap"], document["pids"][0])
    assert seen["version"] == document["version"]
    assert 50 < seen["memory_mb"] < 450
    assert "running" in _run(home, "status").stdout

    stopped = _run(home, "stop", "--json")
    assert (stopped.returncode, _json(stopped)["pids"]) == (0, document["pids"])
    assert membership(_port(document["bootstrap"])) == NOBODY
    assert is_gone(document["pids"][0])

    assert _run(home, "stop").returncode == 3
    assert _run(home, "status").returncode == 3


def test_a_port_in_use_is_an_error_that_names_the_way_out(home: Path, penstock_broker: Any) -> None:
    port = penstock_broker.nodes[0].port

    refused = _run(home, "start", "--port", str(port), "--data", "elsewhere")

    assert refused.returncode == 1
    assert f"port {port}" in refused.stderr
    assert "--port 0" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_it_stays_until_it_is_told_to_end(home: Path, ending: signal.Signals) -> None:
    command = [*PENSTOCK, "broker", "start", "--foreground", "--port", "0", "--data", str(home / "data"), "--json"]
    with started(command, env=_environ(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = ""
        while not text.rstrip().endswith("\n}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        document = json.loads(text)
        assert "Ctrl-C stops it" in process.stderr.readline()

        process.send_signal(ending)

        assert process.wait(60) == 0
    assert is_gone(document["pids"][0])
    assert (home / "data" / "node-1" / "kafka" / ".kafka_cleanshutdown").exists()


def test_a_wrong_size_or_folder_is_a_usage_error(home: Path) -> None:
    (home / "file").write_text("")

    assert _run(home, "start", "--brokers", "2").returncode == 2
    assert _run(home, "start", "--data", str(home / "file")).returncode == 2
