"""Everything that can happen, as frozen dataclasses, and the one place where they are told.

Whoever wants to know subscribes; `logs.py` and `metrics.py` are the two listeners that ship with Penstock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `level` is its weight in a log: debug, info, warning or error."""

    level: ClassVar[str] = "info"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIgnored(Event):
    """A ledger record that is no fact: junk, or from before the genesis."""

    level: ClassVar[str] = "debug"
    ledger: str
    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHalted(Event):
    level: ClassVar[str] = "error"
    ledger: str
    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogClockJumped(Event):
    """The log clock ran ahead of our own elapsed time: what looks expired may not be."""

    level: ClassVar[str] = "warning"
    ledger: str
    partition: int
    ahead_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRebuilt(Event):
    ledger: str
    partition: int
    snapshot_offset: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten(Event):
    ledger: str
    partition: int
    offset: int
    parts: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCut(Event):
    ledger: str
    partition: int
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed(Event):
    """The client gave a record up; whether it is in the log only reading back can tell."""

    level: ClassVar[str] = "warning"
    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionUnsettled(Event):
    """A transactional call had no known outcome; the id is settled and given up."""

    level: ClassVar[str] = "warning"
    transactional_id: str
    call: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced(Event):
    level: ClassVar[str] = "warning"
    transactional_id: str
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdChanged(Event):
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(Event):
    """A slot passed on to somebody else while we held it."""

    level: ClassVar[str] = "warning"
    slot: str
    token: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLost(Event):
    """Records were deleted before anybody had read them: from `start` up to, not including, `end`."""

    level: ClassVar[str] = "error"
    topic: str
    partition: int
    start: int
    end: int


Listener = Callable[[Event], None]

_listeners: list[Listener] = []


def tell(event: Event) -> None:
    """Give the event to every listener, in the order in which they subscribed."""
    for listener in _listeners:
        listener(event)


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
