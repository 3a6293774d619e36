"""A queue's ledger inside a model of workers: the real machine, and records on their way to it.

A record that was sent is in flight until it lands: at once, late, never, or twice. Time passes only between landings,
a whole lease at a time: so whatever is renewed at the present time is valid, and all else has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from msgspec.structs import astuple

from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.queue.records import QueueFounded
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.testing.queue_view import LeaseSeen, View, offsets_of, twin_of, view_of

LEASE_MS = 1


class Landed(NamedTuple):
    """What its sender learns when it reads the record back."""

    offset: int
    kind: Kind
    covered: tuple[int, ...]

    @property
    def is_effective(self) -> bool:
        return self.kind in (Kind.ACCEPTED, Kind.PARTIAL)


class QueueLog(NamedTuple):
    """The ledger, as whoever read all of it knows it."""

    machine: QueueMachine
    offset: int
    clock_ms: int
    view: View

    def appended(self, record: Record) -> tuple[Landed, QueueLog]:
        twin = twin_of(self.machine)
        verdict = twin.apply(record, self.offset, self.clock_ms)
        covered = sorted(offsets_of(verdict.covered)) if isinstance(verdict, Ruling) else []
        after = QueueLog(twin, self.offset + 1, self.clock_ms, view_of(twin, len(self.view.spots)))
        return Landed(self.offset, verdict.kind, tuple(covered)), after

    def aged(self) -> QueueLog:
        return self._replace(clock_ms=self.clock_ms + LEASE_MS)

    def is_valid(self, lease: LeaseSeen) -> bool:
        return lease.is_valid(self.clock_ms)

    def has_valid_leases(self) -> bool:
        return any(self.is_valid(lease) for _, lease in self.view.leases)

    def epochs(self) -> set[int]:
        return {-1, *(epoch for epoch, _ in self.view.leases), *(spot.epoch for spot in self.view.spots)}

    def key(self, rank: Callable[[int], int]) -> Hashable:
        """The ledger without what the future does not depend on."""
        leases = tuple(
            (rank(epoch), lease.worker, lease.producer, lease.alone, self.is_valid(lease))
            for epoch, lease in self.view.leases
        )
        spots = tuple((spot.status, spot.charges, min(spot.losses, 1), rank(spot.epoch)) for spot in self.view.spots)
        return leases, spots, self.view.dead


def founded(machine: type[QueueMachine], offsets: int) -> QueueLog:
    first = machine()
    first.apply(QueueFounded(1, "t", 0, ()), 0, 0)
    return QueueLog(first, 1, 0, view_of(first, offsets))


def ranked(*epochs: Iterable[int]) -> Callable[[int], int]:
    """Epochs by their order only."""
    order = {epoch: number for number, epoch in enumerate(sorted(set().union(*epochs)))}
    return order.__getitem__


def record_key(record: Record, rank: Callable[[int], int]) -> Hashable:
    values = astuple(record)
    if "epoch" in record.__struct_fields__:
        return type(record).__name__, rank(values[0]), values[1:]
    if "epochs" in record.__struct_fields__:
        return type(record).__name__, values[0], tuple(map(rank, values[1]))
    return type(record).__name__, values


def epochs_named(record: Record) -> Iterable[int]:
    epoch = getattr(record, "epoch", None)
    return getattr(record, "epochs", ()) if epoch is None else (epoch,)
