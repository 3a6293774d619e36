"""One partition of a ledger from the first record that can still be judged: for those who ask why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from penstock.errors import BrokerUnavailable, OffsetGone, Refused, TransientError
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.log import Entry, Log
from penstock.ledger.machine import Fold, Judged, Machine
from penstock.ledger.snapshot import Snapshots, Whole
from penstock.settings import KafkaSettings
from penstock.values import Duration

M = TypeVar("M", bound=Machine)

_STEP_MS = 200
_READ_MAX = 10_000


class Patience:
    """Ends a wait in which nothing moves."""

    def __init__(self, lasts: Duration) -> None:
        self._lasts = lasts
        self._seen: object = None
        self._since = time.monotonic()

    def check(self, seen: object, what: str) -> None:
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        elif time.monotonic() - self._since > self._lasts.seconds:
            raise BrokerUnavailable(
                f"{what} gave nothing to read for {self._lasts}", next_step="check the broker (`penstock doctor`)"
            )


class History(Generic[M]):
    """Iterating judges it, once, to the end at the time of asking; `fold` is the state after what was given last."""

    def __init__(self, log: Log, snapshots: Snapshots, partition: int, machine: M, *, patience: Duration) -> None:
        self._log, self._partition, self._patience = log, partition, patience
        self.start, self._end, _ = log.bounds([partition])[partition]
        self.fold = Fold(machine)
        self.base: Whole | None = None
        """The snapshot that stands for what was cut away."""
        if self.start > 0:
            wholes = snapshots.scan(partition).wholes()
            self.base = next((whole for whole in wholes if whole.offset + 1 >= self.start), None)
        if self.base is not None:
            self.fold.load(self.base.data, offset=self.base.offset)

    def check(self) -> None:
        """Raises Refused if the log was cut and no snapshot stands for what is gone: then no verdict has a meaning."""
        if self.start > 0 and self.base is None:
            raise Refused(
                f"partition {self._partition} of {self._log.name} starts at offset {self.start}, and no whole snapshot "
                "reaches it",
                next_step=f"restore the topic {self._log.name}.snapshots",
            )

    def __iter__(self) -> Iterator[tuple[Entry, Judged]]:
        self._log.assign({self._partition: max(self.start, self.fold.next_offset)})
        patience = Patience(self._patience)
        while self._log.position(self._partition) < self._end:
            try:
                entries = self._log.read(_READ_MAX, _STEP_MS)
            except OffsetGone as gone:
                raise TransientError("the log was cut while it was read", next_step="run the same again") from gone
            for entry in entries:
                yield entry, self.fold.feed(entry.offset, entry.time_ms, entry.value)
            patience.check(self._log.position(self._partition), self._log.name)


@contextmanager
def opened_history(
    settings: KafkaSettings, ledger: str, partition: int, machine: Callable[[], M]
) -> Iterator[History[M]]:
    """Raises NotFound without the ledger's topics, Refused with wrong settings of theirs."""
    log, snapshots = open_ledger(settings, ledger)
    try:
        yield History(log, snapshots, partition, machine(), patience=settings.request_timeout)
    finally:
        log.close()
        snapshots.close()
