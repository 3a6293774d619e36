"""How a run of the lake looks on a terminal, and how it leaves it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from real_kafka import append, eventually, new_topic, settings_for, unique
from real_process import started
from real_terminal import Terminal
from rich.console import Console

from penstock.broker import Embedded
from penstock.cli.lake_progress import _table
from penstock.kafka.topics import Admin
from penstock.lake.running import Rate
from penstock.observe.events import LakeProgressed
from penstock.values import TopicPartition

HEADER = "pipeline  state    version  rows  bad  rows/s  lag  behind"

# A run without its Spark: what is shown is from a script, and so is what others say meanwhile. It goes on as it is let.
SCRIPT = """
import os, subprocess, sys, threading
from penstock.cli.lake_progress import shown
from penstock.cli.lake_spark import keep_stdout_from_java
from penstock.lake.serving import stopped_by_signals
from penstock.observe.events import LakeProgressed

def now(rows):
    return [LakeProgressed(pipeline="orders", state="running", version=rows // 10, rows=rows, bad=0,
        rows_per_second=rows / 4, lag_messages=100 - rows, lag_seconds=1.5)]

keep_stdout_from_java()
with shown(as_json=False, quiet=False) as screen, stopped_by_signals(screen.leave) as stopping:
    def wait_for(name):
        while not os.path.exists(name) and not stopping.wait(0.01):
            pass

    screen.show(now(10))
    wait_for("go")
    subprocess.run([sys.executable, "-c", "import sys; print('Java says', flush=True); sys.exit('Java warns')"])
    wait_for("go-on")
    screen.show(now(90))
    stopping.wait()
    if sys.argv[1] == "hang":
        threading.Event().wait()
print("error: what comes after it", file=sys.stderr)
"""


def progressed(rows: int, *, rate: float = 0.0) -> LakeProgressed:
    return LakeProgressed(
        pipeline="orders",
        state="running",
        version=rows // 100,
        rows=rows,
        bad=3,
        rows_per_second=rate,
        lag_messages=1_200,
        lag_seconds=4.56,
    )


def rendered(*all_of_them: LakeProgressed, width: int = 100) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, force_terminal=True, color_system=None).print(_table(all_of_them))
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal([sys.executable, *arguments], tmp_path))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def seen_to_its_last_rows(terminal: Terminal, folder: Path) -> None:
    def has(version: str, rows: str) -> bool:
        return any(line.split()[2:4] == [version, rows] for line in terminal.screen.lines)

    eventually(lambda: has("1", "10"))
    (folder / "go").touch()
    eventually(lambda: "Java warns" in terminal.screen.lines)
    (folder / "go-on").touch()
    eventually(lambda: has("9", "90"))


def test_the_table_has_rows_per_second_lag_and_version_as_they_are_now() -> None:
    rate = Rate(window_s=10)
    rate.seen(0, at=0)

    first = rendered(progressed(5_000, rate=rate.seen(5_000, at=4)))
    second = rendered(progressed(5_100, rate=rate.seen(5_100, at=14)))

    assert [line.split() for line in first] == [
        ["pipeline", "state", "version", "rows", "bad", "rows/s", "lag", "behind"],
        ["orders", "running", "50", "5,000", "3", "1,250", "1,200", "4.6", "s"],
    ]
    assert second[1].split() == ["orders", "running", "51", "5,100", "3", "10", "1,200", "4.6", "s"]


def test_on_a_narrow_terminal_no_line_is_longer_than_it() -> None:
    assert max(map(len, rendered(progressed(123_456_789), progressed(1), width=40))) <= 40


def test_what_others_say_goes_above_the_table_and_the_terminal_is_left_in_order(
    on_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    terminal = on_terminal("-c", SCRIPT, "stop")
    seen_to_its_last_rows(terminal, tmp_path)
    assert not terminal.screen.has_cursor

    terminal.press_ctrl_c()

    assert terminal.ended(within_s=60) == 0
    assert terminal.screen.lines == [
        "Java says",
        "Java warns",
        HEADER,
        "orders    running        9    90    0      22   10   1.5 s",
        "error: what comes after it",
    ]
    assert (terminal.screen.has_cursor, terminal.screen.column) == (True, 0)


def test_ended_at_once_by_a_second_ctrl_c_the_terminal_has_its_cursor_and_a_new_line(
    on_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    terminal = on_terminal("-c", SCRIPT, "hang")
    seen_to_its_last_rows(terminal, tmp_path)

    terminal.press_ctrl_c()
    with pytest.raises(subprocess.TimeoutExpired):
        terminal.ended(within_s=1)  # there is no event for what must not happen
    terminal.press_ctrl_c()

    assert terminal.ended(within_s=60) == 128 + signal.SIGINT
    assert (terminal.screen.has_cursor, terminal.screen.column) == (True, 0)
    assert terminal.screen.lines[2] == HEADER


def test_without_a_terminal_there_are_sentences_and_nothing_that_moves(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, "stop"]
    (tmp_path / "go").touch()
    with started(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        assert child.stdout is not None
        lines = [child.stderr.readline() for _ in range(3)]
        child.send_signal(signal.SIGTERM)
        lines += child.stderr.readlines()
        printed = child.stdout.read()
        child.wait(60)

    assert (child.returncode, printed) == (0, "")
    assert lines == [
        "orders: running, version 1, 10 rows, 2 rows/s, lag 90 messages, 1.5 s\n",
        "Java says\n",
        "Java warns\n",
        "error: what comes after it\n",
    ]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_real_run_shows_rows_per_second_lag_and_version_as_they_change_and_ends_with_one_ctrl_c(
    penstock_broker: Embedded, tmp_path: Path, on_terminal: Callable[..., Terminal]
) -> None:
    kafka = settings_for(penstock_broker.bootstrap)
    with Admin(kafka) as admin:
        topic = new_topic(admin, partitions=1)
    # The first batch comes at once, the next one when it has waited long enough to be seen waiting.
    (tmp_path / "penstock.toml").write_text(
        f'[kafka]\nbootstrap_servers = "{penstock_broker.bootstrap}"\n'
        f'[claims]\ntopic = "{unique("claims")}"\npartitions = 1\n'
        f'[lake]\nmaster = "local[1]"\ndriver_memory = "1g"\n'
        f'[lake.orders]\napp_id = "orders"\ntopic = "{topic}"\ntable = "lake"\ncolumns = "id BIGINT"\n'
        'allowed_latency = "15s"\n'
    )

    def send(*ids: int) -> None:
        append(kafka, TopicPartition(topic, 0), *(json.dumps({"id": each}).encode() for each in ids))

    def cells() -> dict[str, str]:
        """The row that is shown now."""
        rows = [line.split() for line in terminal.screen.lines if line.startswith("orders ")]
        return dict(zip(HEADER.split(), rows[-1], strict=False)) if rows else {}

    def shows(**wanted: str) -> bool:
        now = cells()
        return bool(now) and all(now[name] == value for name, value in wanted.items())

    send(*range(100))
    terminal = on_terminal("-m", "penstock", "lake", "run")
    eventually(lambda: shows(state="waiting", version="-", rows="0"), within_s=240)
    eventually(lambda: shows(state="running", version="1", rows="100", lag="0"), within_s=240)
    javas = psutil.Process(terminal.process.pid).children(recursive=True)
    assert javas
    eventually(lambda: cells()["rows/s"] != "0", within_s=60)
    eventually(lambda: cells()["rows/s"] == "0", within_s=60)
    send(*range(100, 105))
    eventually(lambda: shows(version="1", rows="100", lag="5"), within_s=60)
    eventually(lambda: shows(version="2", rows="105", lag="0"), within_s=60)

    terminal.press_ctrl_c()

    assert terminal.ended(within_s=120) == 0
    assert psutil.wait_procs(javas, timeout=60)[1] == []
    assert shows(state="ended", version="2", rows="105", lag="0")
    # One table, and it is the last that is there.
    assert [line.split() for line in terminal.screen.lines].count(HEADER.split()) == 1
    assert terminal.screen.lines[-2].split() == HEADER.split()
    assert (terminal.screen.has_cursor, terminal.screen.column) == (True, 0)
