"""What the embedded broker tells."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.observe.events.telling import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStarted(Event):
    node: int
    bootstrap: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStopped(Event):
    node: int
    pid: int
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JarsFetched(Event):
    count: int
    megabytes: float
    seconds: float
