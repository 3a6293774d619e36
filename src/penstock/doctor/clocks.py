"""Where the log clock of a ledger stands, whatever machine the ledger is for: the newest snapshot, then the tail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from penstock.ledger.codec import Record
from penstock.ledger.log import Log
from penstock.ledger.machine import Fold, FoldState, Verdict, ignored
from penstock.ledger.snapshot import Snapshots

_READ_MAX = 10_000
_READ_TIMEOUT_MS = 500
_FOREIGN = ignored("only the clock is followed here")
_state_of = msgspec.msgpack.Decoder(FoldState).decode


class ClockOnly:
    """A machine that knows no facts: its fold follows what all ledgers share, and the clock among it."""

    record_types: ClassVar[tuple[type[Record], ...]] = ()
    speaks: ClassVar[int] = 255

    def apply(self, record: Any, offset: int, clock_ms: int) -> Verdict:
        return _FOREIGN

    def reset_clock(self, clock_ms: int) -> None:
        pass

    def dump(self) -> Any:
        return None

    def load(self, dumped: Any) -> None:
        pass


def log_clock(log: Log, snapshots: Snapshots, partition: int, *, is_time_up: Callable[[], bool]) -> tuple[int, bool]:
    """The log clock of a partition in ms, and whether the log was read to its stable end before the time was up."""
    bounds = log.bounds([partition])[partition]
    newest = snapshots.scan(partition).newest()
    fold = Fold(ClockOnly())
    start = bounds.start
    if newest is not None:
        fold.clock_ms, start = _state_of(newest.data).clock_ms, max(start, newest.offset + 1)
    log.assign({partition: start})
    while log.position(partition) < bounds.stable_end:
        if is_time_up():
            return fold.clock_ms, False
        for entry in log.read(_READ_MAX, _READ_TIMEOUT_MS):
            fold.feed(entry.offset, entry.time_ms, entry.value)
    return fold.clock_ms, True
