"""Looking at, and stopping, a broker that another process started, by its data folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.broker import pidfile
from penstock.broker.datafolder import cluster_at, node_folder, reach_of
from penstock.broker.embedded import STOP_TIMEOUT_S
from penstock.broker.places import state_folder
from penstock.errors import NotFound

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A cluster with at least one node up."""

    data: Path
    bootstrap: str
    version: str
    pids: dict[int, int | None]
    """By node number; none for a node that is down, or not yet past its first moment."""


def default_data() -> Path:
    """Where `penstock broker start` keeps its data unless told otherwise: one place per user, like its one port."""
    return state_folder() / "broker"


def running_on(data: Path) -> Running | None:
    """The broker that runs on this data now, whoever started it."""
    cluster = cluster_at(data)
    if cluster is None:
        return None
    holders = {number: pidfile.holder(node_folder(data, number)) for number in range(1, cluster.brokers + 1)}
    if not any(holders.values()):
        return None
    reach = reach_of(data)
    return Running(
        data=data,
        bootstrap=reach.bootstrap if reach else "",
        version=reach.version if reach else "",
        pids={number: holder.pid if holder else None for number, holder in holders.items()},
    )


def stop_on(data: Path) -> Running:
    """End the broker that runs on this data: in order, and by force if that takes too long.

    Raises NotFound when none does.
    """
    running = running_on(data)
    if running is None:
        raise NotFound(
            f"no broker runs on {data}",
            next_step=f"start one with `penstock broker start --data {shlex.quote(str(data))}`",
        )
    _signal(running, signal.SIGTERM)
    _signal(running, signal.SIGCONT)
    if not _ended(data, within_s=STOP_TIMEOUT_S) and (left := running_on(data)):
        _signal(left, signal.SIGKILL)
        _ended(data, within_s=STOP_TIMEOUT_S)
    return running


def resident_mb(pid: int) -> float | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, IndexError, ValueError):
        return _resident_by_ps(pid)


def disk_mb(data: Path) -> float:
    """What the folder really takes: Kafka's index files are larger on paper."""
    total = 0
    for folder, _, names in os.walk(data):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue  # Kafka deletes files while we look
    return total / 1e6


def _resident_by_ps(pid: int) -> float | None:
    try:
        told = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, timeout=5, check=True
        )
        return int(told.stdout) * 1024 / 1e6
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _signal(running: Running, signal_number: signal.Signals) -> None:
    for number, pid in running.pids.items():
        # The lock, not the pid, says that it still runs.
        if pid is not None and pidfile.holder(node_folder(running.data, number)):
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                continue


def _ended(data: Path, *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while running_on(data):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
