"""The demo's chapter on the lake: the queue's orders land in a Delta table, and the driver is killed in between."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.broker import progress_shown
from penstock.errors import CheckFailed, Unavailable, WrongChecksum

if TYPE_CHECKING:
    from penstock.cli.demo import Story
    from penstock.settings import KafkaSettings
    from penstock.values import TopicPartition

PATIENCE_S = 300.0

Said = dict[str, Any]


@dataclass(slots=True)
class _Driver:
    """One process that lands, and what it says."""

    process: subprocess.Popen[str]
    log: Path
    heard: queue.SimpleQueue[Said | None] = field(default_factory=queue.SimpleQueue)
    listener: threading.Thread | None = None

    @classmethod
    def started(cls, settings: KafkaSettings, folder: Path, mode: str) -> _Driver:
        command = [sys.executable, "-m", "penstock.cli.demo_driver", settings.bootstrap_servers, str(folder), mode]
        log = folder / f"driver-{mode}.log"
        with log.open("wb") as errors:
            # A group of its own: its Java is to be killed with it.
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, start_new_session=True
            )
        driver = cls(process, log)
        driver.listener = threading.Thread(target=driver._listen)
        driver.listener.start()
        return driver

    def _listen(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as lines:
                for line in lines:
                    self.heard.put(json.loads(line))
        self.heard.put(None)

    def says(self, what: str) -> Said:
        """The next line with this word. Raises Unavailable where there is no Spark, CheckFailed when it never comes."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                said = self.heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._failed(f"said nothing of {what!r} for {PATIENCE_S:.0f} s") from None
            if said is None:
                raise self._failed(f"ended and said nothing of {what!r}")
            if "missing" in said:
                raise Unavailable(said["missing"], next_step=said["next"])
            if "failed" in said:
                raise self._failed(f"failed: {said['failed']}")
            if what in said:
                return said

    def _failed(self, how: str) -> CheckFailed:
        last = self.log.read_text("utf-8", errors="replace").strip().rpartition("\n")[2]
        return CheckFailed(
            f"the lake's driver {how}{'; its last words: ' if last else ''}{last}",
            next_step="please report this with the output of `penstock doctor`",
        )

    def end(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.listener is not None:
            self.listener.join()


def lake(story: Story, settings: KafkaSettings) -> None:
    """Without Spark or its jars the chapter says what is missing, and the story goes on."""
    from penstock.lake.jars import lake_jars

    try:
        with progress_shown(quiet=story.quiet, of="the lake's jars") as progress:
            lake_jars(progress=progress)
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
            _land_and_kill(story, settings, Path(folder))
    except (Unavailable, WrongChecksum) as missing:
        story.tell("lake", f"left out: {missing.what}")
        story.tell("", f"to see it: {missing.next_step}")
        story.figures["lake"] = {"left_out": missing.what}


def _land_and_kill(story: Story, settings: KafkaSettings, folder: Path) -> None:
    from penstock.cli.demo_driver import TABLE

    began = time.monotonic()
    drivers = [_Driver.started(settings, folder, "hold")]
    try:
        drivers[0].says("held")
        drivers[0].end()
        killed_at = time.monotonic()
        before = _Log.read(folder / TABLE)
        drivers.append(_Driver.started(settings, folder, "land"))
        drivers[1].says("landed")
        recovered_s = time.monotonic() - killed_at
        counted = drivers[1].says("rows")
    finally:
        for driver in drivers:
            driver.end()
    outcome = _Outcome(
        pid=drivers[0].process.pid,
        before=before,
        after=_Log.read(folder / TABLE),
        recovered_s=recovered_s,
        counted=counted,
        kafka=_ends(settings),
        shown=_shown(settings),
    )
    _tell(story, outcome, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Log:
    """What the table's log says, read as the files that it is."""

    rows: int
    offsets: dict[int, int]
    """One past the stored offset, by partition."""
    uncommitted: int
    """Data files that lie there and are in no version."""

    @classmethod
    def read(cls, table: Path) -> _Log:
        lines = (
            json.loads(line)
            for version in sorted(table.glob("_delta_log/*.json"))
            for line in version.read_text("utf-8").splitlines()
        )
        rows, offsets, committed = 0, {}, set()
        for action in lines:
            if "add" in action:
                committed.add(action["add"]["path"])
                rows += json.loads(action["add"]["stats"])["numRecords"]
            if "txn" in action:
                offsets[int(action["txn"]["appId"].rpartition("-")[2])] = action["txn"]["version"] + 1
        found = {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}
        return cls(rows, offsets, len(found - committed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What happened, from its sides: the table's log, Spark's count, the topic, and the offsets in Kafka."""

    pid: int
    before: _Log
    after: _Log
    recovered_s: float
    counted: Said
    kafka: dict[int, int]
    shown: dict[int, int]


def _tell(story: Story, outcome: _Outcome, seconds: float) -> None:
    before, after, counted = outcome.before, outcome.after, outcome.counted
    sent, rows, distinct = sum(outcome.kafka.values()), counted["rows"], counted["distinct"]
    lost, twice = sent - distinct, rows - distinct
    story.tell(
        "lake", f"{sent:,} orders to a Delta table; driver (pid {outcome.pid}) killed after {before.rows:,} rows"
    )
    files = f"{before.uncommitted} data file{'' if before.uncommitted == 1 else 's'}"
    story.tell("", f"{files} written, not committed; a new driver commits {outcome.recovered_s:.1f} s later")
    story.tell("", f"rows {rows:,} · distinct {distinct:,} · lost {lost} · twice {twice}")
    story.tell(
        "",
        f"offsets in the table {sum(after.offsets.values()):,} · at the topic's end {sent:,} "
        f"· committed to Kafka {sum(outcome.shown.values()):,}",
        seconds,
    )
    story.figures["lake"] = {
        "sent": sent,
        "rows": rows,
        "distinct": distinct,
        "lost": lost,
        "twice": twice,
        "before_the_kill": before.rows,
        "uncommitted_files": before.uncommitted,
        "recovered_s": round(outcome.recovered_s, 2),
        "offsets": {"table": sum(after.offsets.values()), "committed": sum(outcome.shown.values())},
    }
    story.check("lake: the kill came too late, or too early", 0 < before.rows < sent and before.uncommitted > 0)
    story.check(f"lake: {lost} orders are not in the table", lost == 0 and counted["orders"] == sent)
    story.check(f"lake: {twice} orders are in the table twice", twice == 0 and after.rows == rows)
    story.check("lake: the offsets in the table are not those of the topic", after.offsets == outcome.kafka)
    story.check("lake: the offsets in Kafka are not those of the table", outcome.shown == after.offsets)


def _ends(settings: KafkaSettings) -> dict[int, int]:
    from penstock.kafka.topics import Admin

    with Admin(settings) as admin:
        return {each.partition: has.end for each, has in admin.bounds(_partitions()).items()}


def _shown(settings: KafkaSettings) -> dict[int, int]:
    """What a lag tool sees."""
    from penstock.cli.demo_driver import APP_ID
    from penstock.kafka.topics import Admin

    with Admin(settings) as admin:
        return {each.partition: offset for each, offset in admin.group_offsets(APP_ID, _partitions()).items()}


def _partitions() -> list[TopicPartition]:
    from penstock.cli.demo_worker import PARTITIONS, QUEUE
    from penstock.values import TopicPartition

    return [TopicPartition(QUEUE, each) for each in range(PARTITIONS)]
