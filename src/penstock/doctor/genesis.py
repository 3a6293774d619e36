"""What a partition of the coordination ledger was founded for: the newest snapshot knows, or the first record."""

from __future__ import annotations

from collections.abc import Callable

from penstock.claims.records import ClaimsFounded
from penstock.claims.state import Claims
from penstock.ledger.log import Log
from penstock.ledger.machine import Fold
from penstock.ledger.snapshot import Snapshots

_READ_MAX = 100
_READ_TIMEOUT_MS = 500


def founded(log: Log, snapshots: Snapshots, partition: int, *, is_time_up: Callable[[], bool]) -> ClaimsFounded | None:
    """None where nobody has founded it yet, or the time was up."""
    fold, newest = Fold(Claims()), snapshots.scan(partition).newest()
    if newest is not None:
        fold.load(newest.data, offset=newest.offset)
    bounds = log.bounds([partition])[partition]
    log.assign({partition: max(bounds.start, fold.next_offset)})
    while fold.genesis is None and log.position(partition) < bounds.stable_end and not is_time_up():
        for entry in log.read(_READ_MAX, _READ_TIMEOUT_MS):
            fold.feed(entry.offset, entry.time_ms, entry.value)
    return fold.genesis if isinstance(fold.genesis, ClaimsFounded) else None
