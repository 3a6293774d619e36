"""Leases, burials and pauses: what several offsets have in common, and which of them are still in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.ranges import Range


@dataclass(slots=True)
class Lease:
    """Won by one `Taken`. It dies whole: as soon as any of its offsets goes to another one, it holds nothing."""

    epoch: int
    worker: str
    renewed_ms: int
    lease_ms: int
    producer: str | None
    alone: bool
    held: list[Range] = field(default_factory=list)
    """The offsets still in it, sorted; never empty, for then it is over."""

    def is_valid(self, clock_ms: int) -> bool:
        return clock_ms - self.renewed_ms < self.lease_ms

    def may_end(self, clock_ms: int) -> bool:
        """Whether its offsets can be granted to another: not while it is valid, nor while its producer may commit."""
        return self.producer is None and not self.is_valid(clock_ms)


@dataclass(slots=True)
class Burial:
    """One `Buried`: what the copies of its offsets need to know besides the message."""

    offset: int
    """Of the record in the ledger."""
    time_ms: int
    reason: str
    error: str
    held: list[Range] = field(default_factory=list)
    """The offsets that are still to be copied."""


class Pause(NamedTuple):
    by: str
    until_ms: int | None
    reason: str

    def holds(self, clock_ms: int) -> bool:
        return self.until_ms is None or clock_ms < self.until_ms
