"""Records as they are read, and hands with them, for tests without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger.clock import LocalLease
from penstock.queue.cells import READY, Cell
from penstock.queue.hand import Hand
from penstock.queue.stretch import Stretch, row


class Record:
    def __init__(
        self, offset: int, key: bytes | None = None, value: bytes | None = b"", headers: object = None
    ) -> None:
        self._offset, self._key, self._value, self._headers = offset, key, value, headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers  # type: ignore[return-value]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 + self._offset

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


def stretch(keys: Sequence[str | None], start: int = 0) -> Stretch:
    """One message for each key, from `start` on."""
    return row([Record(start + n, key.encode() if key else None) for n, key in enumerate(keys)], start)


def values(*values: bytes, start: int = 0) -> Stretch:
    return row([Record(start + n, None, value) for n, value in enumerate(values)], start)


def hand(*stretches: Stretch, cell: Cell = READY, epoch: int = 5) -> Hand:
    ranges = [part for each in stretches for part in each.ranges]
    lease = LocalLease(lasts_ms=1_000)
    lease.renewed(sent_ms=0)
    return Hand(
        partition=0,
        epoch=epoch,
        stretches=stretches,
        lease=lease,
        cells=[(cell, tuple(ranges))],
        left=list(ranges),
        untold=list(ranges),
        count=sum(len(each.records) for each in stretches),
    )


def offsets(stretches: Sequence[Stretch]) -> list[int]:
    return [record.offset() for each in stretches for record in each.records]
