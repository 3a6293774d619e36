"""What only a person may write into a ledger: they change the rules of judging, so they are never sent by a worker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from penstock.errors import TransientError
from penstock.ledger.codec import Record, encode
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.log import Log
from penstock.ledger.machine import ClockReset, VersionRaised
from penstock.settings import Settings

_READ_BACK_TIMEOUT_S = 60.0


def reset_clock(settings: Settings, ledger: str, *, by: str) -> None:
    """Set the log clock of every partition to now: for a ledger that was written to under a clock in the future."""
    _append_everywhere(settings, ledger, ClockReset(by))


def raise_version(settings: Settings, ledger: str, *, version: int, by: str) -> None:
    """Switch protocol `version` on in every partition. Readers that do not speak it stop there; it never goes down."""
    _append_everywhere(settings, ledger, VersionRaised(version, by))


def _append_everywhere(settings: Settings, ledger: str, record: Record) -> None:
    log, snapshots = open_ledger(settings.kafka, ledger)  # refuses a topic that is no ledger
    try:
        append_and_read_back(log, range(log.partition_count()), record)
    finally:
        log.close()
        snapshots.close()


def append_and_read_back(log: Log, partitions: Iterable[int], record: Record) -> None:
    """Append the record to each partition, and return when each was read back.

    Raises TransientError when one does not appear; writing it again then does no harm.
    """
    waiting = set(partitions)
    key = f"operator-{uuid.uuid4().hex}".encode()
    ends = {partition: bounds.stable_end for partition, bounds in log.bounds(waiting).items()}
    log.assign(ends)
    for partition in sorted(waiting):
        log.append(partition, encode(record), key)
    deadline = time.monotonic() + _READ_BACK_TIMEOUT_S
    while waiting:
        waiting -= {entry.partition for entry in log.read(1_000, 200) if entry.key == key}
        if waiting and time.monotonic() > deadline:
            raise TransientError(
                f"{type(record).__name__} was not read back from partitions {sorted(waiting)} of {log.name}",
                next_step="an open transaction may hide it; look with `penstock doctor`, then run the same again",
            )
