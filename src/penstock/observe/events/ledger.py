"""What the reader of a ledger tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.observe.events.telling import Event


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
