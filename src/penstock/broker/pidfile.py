"""Who runs on this data? A pid file that the running broker itself keeps locked.

The lock is taken before the broker is started and inherited by it, so it ends exactly when the broker does, however
that happens. A file without a lock is stale, whatever process has that pid by now: nothing is guessed from pids.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BrokerRunning

NAME = "broker.pid"
_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Holder:
    """A live broker; its pid is none for the moment between the lock and the start."""

    pid: int | None


def hold(folder: Path) -> int:
    """Take the lock; the descriptor is to be inherited by the broker, then closed.

    Raises BrokerRunning when another one has it.
    """
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    # Somebody who only looks has the lock for an instant.
    deadline = time.monotonic() + _PATIENCE_S
    while not _locked(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            pid = _pid(descriptor)
            os.close(descriptor)
            raise BrokerRunning(data=str(folder.parent), pid=pid)
        time.sleep(0.02)
    os.ftruncate(descriptor, 0)
    return descriptor


def note(descriptor: int, pid: int) -> None:
    os.pwrite(descriptor, f"{pid}\n".encode(), 0)


def holder(folder: Path) -> Holder | None:
    """The broker that runs on this node's folder, if one does."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _locked(descriptor, fcntl.LOCK_SH) else Holder(_pid(descriptor))
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdecimal() else None
