"""`penstock demo --once` as a new user runs it: exit 0 only if every count is right, and nothing stays behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

PENSTOCK = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


def until(is_so: Callable[[], bool], *, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {within_s} s in vain"
        time.sleep(0.05)


def test_the_demo_counts_what_happened(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PENSTOCK, "demo", "--once", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )

    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    assert story["broken"] == []
    assert story["figures"]["ledger"] == {"sent": 20_000, "counted": 20_000, "lost": 0, "twice": 0}
    assert story["figures"]["crash"]["under_way"] > 0
    assert story["figures"]["replay"]["from_offset"] == 0
    assert story["figures"]["snapshot"]["log_start"] > 0
    queue = story["figures"]["queue"]
    assert {name: queue[name] for name in ("sent", "acked", "dead", "lost")} == {
        "sent": 10_000,
        "acked": 9_988,
        "dead": 12,
        "lost": 0,
    }
    assert queue["redelivered"] == queue["in_hand"] > 0
    assert queue["redelivered_s"] > 0


def test_a_wrong_count_is_told_and_exits_5(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The check can fail: a ledger that forgets is found out."""
    from penstock.cli.main import main
    from penstock.ledger import counter
    from penstock.ledger.machine import Verdict

    honest = counter.Counter._on_added

    def forgetful(self: counter.Counter, record: counter.CounterAdded, offset: int, clock_ms: int) -> Verdict:
        verdict = honest(self, record, offset, clock_ms)
        if record.number == 15_000:
            self.total -= 1
        return verdict

    monkeypatch.setattr(counter.Counter, "_on_added", forgetful)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--once"])

    assert ended.value.code == 5
    assert "facts count twice" in capsys.readouterr().err


def test_a_lost_order_is_told() -> None:
    """The queue's check can fail: an order that no handler finished, and that is not dead, is found out."""
    from penstock.cli import demo_queue
    from penstock.cli.demo import Story

    worker = demo_queue._Worker(process=None)  # type: ignore[arg-type]
    worker.done = [order for order in range(1, 11) if order != 7]
    books = demo_queue._Books(acked={(0, offset) for offset in range(10)})
    story = Story(quiet=True)
    demo_queue._tell(story, demo_queue._Outcome([worker], 10, 0.0, books, set(), []))

    assert "1 orders were lost" in story.broken
    assert "worker-2 was killed with nothing in hand" in story.broken
    assert story.figures["queue"]["lost"] == 1  # type: ignore[index]


@contextmanager
def started_demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that has told its story and stays; gone at the end, whatever happens."""
    with subprocess.Popen(
        [*PENSTOCK, "demo"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            assert any("Ctrl-C stops all" in line for line in demo.stdout)
            yield demo
        finally:
            demo.kill()


def test_ctrl_c_stops_all(tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        children = psutil.Process(demo.pid).children(recursive=True)
        assert any("java" in child.name() for child in children)

        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)

        assert demo.returncode == 0, errors
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
