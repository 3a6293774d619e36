"""One partition of a queue's ledger from the first record that can still be judged, for those who ask why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import BrokerUnavailable, OffsetGone, TransientError
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.log import Entry, Log
from penstock.ledger.machine import Fold, Judged
from penstock.ledger.snapshot import Snapshots, Whole
from penstock.queue.state import QueueMachine
from penstock.settings import Settings
from penstock.values import Duration

_STEP_MS = 200
_READ_MAX = 10_000


class History:
    """Iterating judges it, once, to the end at the time of asking; `fold` is the state after what was given last."""

    def __init__(self, log: Log, snapshots: Snapshots, partition: int, *, patience: Duration) -> None:
        self._log, self._partition, self._patience = log, partition, patience
        self.start, self._end, _ = log.bounds([partition])[partition]
        self.fold = Fold(QueueMachine())
        self.base: Whole | None = None
        """The snapshot that stands for what was cut away."""
        if self.start > 0:
            wholes = snapshots.scan(partition).wholes()
            self.base = next((whole for whole in wholes if whole.offset + 1 >= self.start), None)
        if self.base is not None:
            self.fold.load(self.base.data, offset=self.base.offset)

    def __iter__(self) -> Iterator[tuple[Entry, Judged]]:
        self._log.assign({self._partition: max(self.start, self.fold.next_offset)})
        moved, position = time.monotonic(), -1
        while self._log.position(self._partition) < self._end:
            if self._log.position(self._partition) != position:
                moved, position = time.monotonic(), self._log.position(self._partition)
            elif time.monotonic() - moved > self._patience.seconds:
                raise BrokerUnavailable(
                    f"{self._log.name} gave nothing to read for {self._patience}",
                    next_step="check the broker (`penstock doctor`)",
                )
            for entry in self._read():
                yield entry, self.fold.feed(entry.offset, entry.time_ms, entry.value)

    def _read(self) -> list[Entry]:
        try:
            return self._log.read(_READ_MAX, _STEP_MS)
        except OffsetGone as gone:
            raise TransientError("the log was cut while it was read", next_step="run the same again") from gone


@contextmanager
def opened_history(settings: Settings, ledger: str, partition: int) -> Iterator[History]:
    """Raises NotFound without the ledger's topics, Refused with wrong settings of theirs."""
    log, snapshots = open_ledger(settings.kafka, ledger)
    try:
        yield History(log, snapshots, partition, patience=settings.kafka.request_timeout)
    finally:
        log.close()
        snapshots.close()
