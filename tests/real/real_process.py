"""Processes that a test starts, and that do not outlive it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil


@contextmanager
def started(command: Sequence[str], **given: Any) -> Iterator[subprocess.Popen[str]]:
    """A process while the block lasts; `Popen` alone would wait for it, also when the test has failed."""
    with subprocess.Popen(command, text=True, **given) as process:
        try:
            yield process
        finally:
            process.kill()


def is_gone(pid: int) -> bool:
    """One question to the system, not two: between "is it there?" and "what is it?" it may end."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
