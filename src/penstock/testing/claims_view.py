"""A slot as plain values, offset by offset: what checkers look at instead of the machine's own answers."""

from __future__ import annotations

from typing import NamedTuple

from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind

Owner = tuple[str, str]


class Cell(NamedTuple):
    """One offset between position and frontier."""

    status: str
    deliveries: int = 0
    charges: int = 0
    most: int = 0
    owner: Owner | None = None
    epoch: int | None = None
    renewed_ms: int | None = None
    producer: str | None = None
    is_to_bury: bool = False

    @property
    def is_finished(self) -> bool:
        return self.status in ("done", "dead")


class View(NamedTuple):
    owner: Owner | None = None
    epoch: int = -1
    renewed_ms: int = 0
    position: int | None = None
    producers: frozenset[str] = frozenset()
    intent: int | None = None
    frontier: int | None = None
    cells: tuple[tuple[int, Cell], ...] = ()
    pause: tuple[str, int] | None = None
    """Who paused the slot's group, and until when."""


class Setting(NamedTuple):
    """HB, W and D of the genesis, told to a checker instead of being asked of the machine."""

    heartbeat_ms: int
    window: int
    delivery_limit: int

    def is_valid(self, renewed_ms: int, clock_ms: int) -> bool:
        return clock_ms - renewed_ms < 2 * self.heartbeat_ms


class Transition(NamedTuple):
    """One record, what the machine said to it, and what it did."""

    record: Record
    offset: int
    clock_ms: int
    kind: Kind
    before: View
    after: View


def view_of(machine: Claims, slot: Slot) -> View:
    """The slot as the machine holds it; what overlaps or is out of order shows as a repeated or falling offset."""
    state, pause = machine.slot(slot), machine.pauses.get(slot.group)
    cells: list[tuple[int, Cell]] = []
    for item in state.map:
        held = item.tenancy
        tenancy = (
            (None, None, None, None, False)
            if held is None
            else (held.owner, held.epoch, held.renewed_ms, held.producer, held.is_to_bury)
        )
        cell = Cell(item.status.value, item.deliveries, item.charges, item.most, *tenancy)
        cells += [(offset, cell) for offset in range(item.start, item.end)]
    return View(
        state.owner,
        state.epoch,
        state.renewed_ms,
        state.position,
        frozenset(state.producers),
        state.intent,
        state.map.frontier,
        tuple(cells),
        None if pause is None else (pause.by, pause.until_ms),
    )
