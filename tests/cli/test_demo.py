"""`penstock demo --once` as a new user runs it: exit 0 only if every count is right, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_kafka import eventually
from real_process import is_gone, started

from penstock.cli import demo_lake
from penstock.cli.demo import Story

PENSTOCK = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_counts_what_happened(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PENSTOCK, "demo", "--once", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=560, check=False
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
    lake = story["figures"]["lake"]
    assert {name: lake[name] for name in ("sent", "rows", "distinct", "lost", "twice", "offsets")} == {
        "sent": 10_000,
        "rows": 10_000,
        "distinct": 10_000,
        "lost": 0,
        "twice": 0,
        "offsets": {"table": 10_000, "committed": 10_000},
    }
    assert 0 < lake["before_the_kill"] < 10_000
    assert lake["uncommitted_files"] > 0


def test_a_wrong_count_is_told_and_exits_5(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The check can fail: a ledger that forgets is found out."""
    from penstock.cli import demo
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
    monkeypatch.setattr(demo, "lake", lambda *_: None)  # it takes its time, and has nothing to do with this
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--once"])

    assert ended.value.code == 5
    assert "facts count twice" in capsys.readouterr().err


def test_a_lost_order_is_told() -> None:
    """The queue's check can fail: an order that no handler finished, and that is not dead, is found out."""
    from penstock.cli import demo_queue

    worker = demo_queue._Worker(process=None)  # type: ignore[arg-type]
    worker.done = [order for order in range(1, 11) if order != 7]
    books = demo_queue._Books(acked={(0, offset) for offset in range(10)})
    story = Story(quiet=True)
    demo_queue._tell(story, demo_queue._Outcome([worker], 10, 0.0, books, set(), []))

    assert "1 orders were lost" in story.broken
    assert "worker-2 was killed with nothing in hand" in story.broken
    assert story.figures["queue"]["lost"] == 1  # type: ignore[index]


def lake_outcome(**changed: Any) -> demo_lake._Outcome:
    """Ten orders that landed as they should, but for what is said."""
    before = demo_lake._Log(rows=4, offsets={0: 4}, uncommitted=1)
    after = demo_lake._Log(rows=10, offsets={0: 10}, uncommitted=1)
    counted = {"rows": 10, "distinct": 10, "orders": 10}
    told = {"before": before, "after": after, "counted": counted, "kafka": {0: 10}, "shown": {0: 10}}
    return demo_lake._Outcome(**{"pid": 1, "recovered_s": 1.0, **told, **changed})


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, []),
        ({"counted": {"rows": 9, "distinct": 9, "orders": 9}}, ["lake: 1 orders are not in the table"]),
        ({"counted": {"rows": 11, "distinct": 10, "orders": 10}}, ["lake: 1 orders are in the table twice"]),
        ({"kafka": {0: 9, 1: 1}}, ["lake: the offsets in the table are not those of the topic"]),
        ({"shown": {0: 9}}, ["lake: the offsets in Kafka are not those of the table"]),
        ({"before": demo_lake._Log(rows=0, offsets={}, uncommitted=0)}, ["lake: the kill came too late, or too early"]),
    ],
)
def test_what_is_wrong_in_the_lake_is_told(changed: dict[str, Any], broken: list[str]) -> None:
    story = Story(quiet=True)
    demo_lake._tell(story, lake_outcome(**changed), 1.0)

    assert [problem for problem in broken if problem not in story.broken] == []
    assert bool(story.broken) is bool(broken)


@contextmanager
def started_demo(folder: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A demo that has told its story and stays, with what it told; gone at the end, whatever happens."""
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started([*PENSTOCK, "demo"], cwd=folder, env={**os.environ, **environ}, **out) as demo:
        assert demo.stdout is not None
        told: list[str] = []
        for line in demo.stdout:
            told.append(line)
            if "Ctrl-C stops all" in line:
                break
        yield demo, told


def test_without_spark_the_lake_is_left_out_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    """A chapter that cannot be told says so, and the story goes on."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('not here')")
    with started_demo(tmp_path, PYTHONPATH=str(tmp_path)) as (demo, told):
        assert "lake      left out: Spark is not installed\n" in told
        assert "          to see it: pip install 'penstock[lake]'\n" in told
        assert "Ctrl-C stops all" in told[-1]
        children = psutil.Process(demo.pid).children(recursive=True)
        assert any("java" in child.name() for child in children)

        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)

        assert demo.returncode == 0, errors
    eventually(lambda: all(is_gone(child.pid) for child in children))
