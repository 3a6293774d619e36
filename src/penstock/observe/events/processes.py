"""What `penstock work` tells of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.observe.events.telling import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """`penstock work` started a process; it loads the application now."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReady(Event):
    """A process of `penstock work` has loaded the application, and begins to work."""

    number: int
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStopped(Event):
    """A process of `penstock work` ended as it was asked to."""

    number: int
    pid: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDied(Event):
    """A process of `penstock work` ended, and nobody had asked it to; below 0 the code is a signal."""

    level: ClassVar[str] = "warning"
    number: int
    pid: int
    exit_code: int
    restart_in_s: float | None
    """None if it is not started again, or not before its code has changed: it would not go better the next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled(Event):
    """A process of `penstock work` did not end in its time of grace; what it had in hand comes back."""

    level: ClassVar[str] = "error"
    number: int
    pid: int
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTooLarge(Event):
    """A process of `penstock work` takes more memory than it may: it is drained and replaced."""

    level: ClassVar[str] = "warning"
    number: int
    pid: int
    resident_mb: float
    memory_max_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChanged(Event):
    """With `--reload`: a file was changed, so all processes are replaced."""

    path: str
