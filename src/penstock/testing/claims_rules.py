"""The protocol's two tables once more, offset by offset and without regard to speed: what each record must do.

Written from the description and not from the machine, so that the two can be compared. It knows one slot, keeps a cell
for every offset, and names the reason when it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    GroupPaused,
    Heartbeat,
    Intended,
    ProducersFenced,
    RangeAcked,
    RangeBuried,
    RangeClaimed,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
    Slot,
)
from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.testing.claims_view import Cell, Owner, Setting, View

Answer = tuple[Kind, View]


def expected(record: Record, offset: int, clock_ms: int, before: View, setting: Setting, slot: Slot) -> Answer:
    """What the protocol says to this record, and the slot after it."""
    case = _Case(offset, clock_ms, before, setting, slot)
    return _RULES[type(record)](case, record)


class _Case:
    """One record's circumstances, in the protocol's words."""

    def __init__(self, offset: int, clock_ms: int, before: View, setting: Setting, slot: Slot) -> None:
        self.offset, self.clock_ms, self.before, self.setting, self.slot = offset, clock_ms, before, setting, slot
        self.cells = dict(before.cells)

    # Words

    @property
    def refused(self) -> Answer:
        return Kind.IGNORED, self.before

    @property
    def unchanged(self) -> Answer:
        return Kind.UNCHANGED, self.before

    @property
    def valid_owner(self) -> Owner | None:
        return self.before.owner if self.setting.is_valid(self.before.renewed_ms, self.clock_ms) else None

    def is_live(self, cell: Cell) -> bool:
        return cell.renewed_ms is not None and self.setting.is_valid(cell.renewed_ms, self.clock_ms)

    def is_paused_for(self, client: str) -> bool:
        pause = self.before.pause
        return pause is not None and pause[0] != client and self.clock_ms < pause[1]

    def is_owner(self, client: str, instance: str, epoch: int) -> bool:
        return self.before.owner == (client, instance) and self.before.epoch == epoch

    # Effects

    def end_epochs(self, *epochs: int | None) -> None:
        """All that is left of them is lost, run by run."""
        for run in self.runs():
            cell = self.cells[run[0]]
            if cell.epoch is None or cell.epoch not in epochs:
                continue
            charges = cell.charges + (1 if len(run) == 1 else 0)
            lost = Cell("lost", cell.deliveries, charges, max(1, len(run) // 8))
            self.cells.update(dict.fromkeys(run, lost))

    def runs(self) -> list[list[int]]:
        """Neighbouring offsets that differ in nothing."""
        runs: list[list[int]] = []
        for offset in sorted(self.cells):
            if runs and runs[-1][-1] == offset - 1 and self.cells[offset] == self.cells[offset - 1]:
                runs[-1].append(offset)
            else:
                runs.append([offset])
        return runs

    def moved(self, view: View, position: int | None) -> View:
        """Never back, then over the finished prefix; what lies below goes."""
        known = [number for number in (view.position, position) if number is not None]
        if not known:
            return view
        now = max(known)
        while now in self.cells and self.cells[now].is_finished:
            now += 1
        self.cells = {offset: cell for offset, cell in self.cells.items() if offset >= now}
        intent = None if view.intent is not None and now >= view.intent else view.intent
        return view._replace(position=now, frontier=max(view.frontier or 0, now), intent=intent)

    def accepted(self, view: View) -> Answer:
        return Kind.ACCEPTED, view._replace(cells=tuple(sorted(self.cells.items())))


# Whole slots


def _claimed(case: _Case, record: Claimed) -> Answer:
    before, sender, valid = case.before, (record.client, record.instance), case.valid_owner
    is_reclaim = record.reclaim and valid is not None and valid[0] == record.client
    if case.is_paused_for(record.client) or record.expects not in (None, before.epoch):
        return case.refused
    if valid is not None and valid != sender and not is_reclaim:
        return case.refused
    if any(case.is_live(cell) for cell in case.cells.values()):
        return case.refused
    if valid == sender:
        return case.unchanged
    inherited = {cell.producer for cell in case.cells.values()} | {record.producer}
    case.end_epochs(*{cell.epoch for cell in case.cells.values()})
    return case.accepted(
        before._replace(
            owner=sender,
            epoch=case.offset,
            renewed_ms=case.clock_ms,
            intent=None,
            producers=before.producers | {name for name in inherited if name is not None},
        )
    )


def _heartbeat(case: _Case, record: Heartbeat) -> Answer:
    beats = [beat for beat in record.beats if beat.slot == case.slot]
    answer = case.refused
    for beat in beats:
        answer = _beat(case, record.client, record.instance, beat)
    return answer


def _beat(case: _Case, client: str, instance: str, beat: Beat) -> Answer:
    if not case.is_owner(client, instance, beat.epoch):
        return case.refused
    own = {beat.producer} if beat.producer is not None else set()
    view = case.before._replace(
        renewed_ms=case.clock_ms, producers=(case.before.producers - set(beat.fenced)) | frozenset(own)
    )
    return case.accepted(case.moved(view, beat.position))


def _released(case: _Case, record: ClaimReleased) -> Answer:
    if not case.is_owner(record.client, record.instance, record.epoch):
        return case.refused
    view = case.before._replace(owner=None, intent=None, producers=case.before.producers - set(record.fenced))
    if not record.reset:
        return case.accepted(case.moved(view, record.position))
    case.cells.clear()
    return case.accepted(view._replace(position=record.position, frontier=record.position))


def _intended(case: _Case, record: Intended) -> Answer:
    sender, position = (record.client, record.instance), case.before.position
    if not case.is_owner(*sender, record.epoch) or case.valid_owner != sender:
        return case.refused
    if position is not None and record.upto <= position:
        return case.refused
    return case.accepted(case.before._replace(intent=record.upto))


def _producers_fenced(case: _Case, record: ProducersFenced) -> Answer:
    if case.valid_owner is not None or record.epoch not in (None, case.before.epoch):
        return case.refused
    left = case.before.producers - set(record.ids)
    return case.unchanged if left == case.before.producers else case.accepted(case.before._replace(producers=left))


def _paused(case: _Case, record: GroupPaused) -> Answer:
    if record.group != case.slot.group:
        return case.accepted(case.before)
    pause = (record.by, record.until_ms) if case.clock_ms < record.until_ms else None
    return case.accepted(case.before._replace(pause=pause))


# Ranges


def _range_claimed(case: _Case, record: RangeClaimed) -> Answer:
    if case.is_paused_for(record.client) or case.valid_owner is not None or case.before.producers or record.n < 1:
        return case.refused
    position = case.before.position if case.before.position is not None else max(0, record.start or 0)
    frontier = case.before.frontier if case.before.frontier is not None else position
    block = _left_behind(case, record.n) or list(
        range(frontier, min(frontier + record.n, position + case.setting.window))
    )
    if not block:
        return case.refused
    for offset in block:
        old = case.cells.get(offset, Cell("free"))
        case.cells[offset] = Cell(
            "claimed",
            old.deliveries + 1,
            old.charges,
            0,
            (record.client, record.instance),
            case.offset,
            case.clock_ms,
            record.producer,
            old.charges >= case.setting.delivery_limit,
        )
    frontier = max(frontier, block[-1] + 1)
    view = case.before._replace(position=position, frontier=frontier, owner=None, epoch=case.offset, intent=None)
    return case.accepted(view)


def _left_behind(case: _Case, n: int) -> list[int] | None:
    """The block from the first candidate, its old epoch being ended whole."""
    for offset in sorted(case.cells):
        cell = case.cells[offset]
        has_run_out = cell.status == "claimed" and not case.is_live(cell) and cell.producer is None
        if cell.status not in ("free", "lost") and not has_run_out:
            continue
        case.end_epochs(*([cell.epoch] if has_run_out else []))
        run = next(run for run in case.runs() if offset in run)
        cell = case.cells[offset]
        if cell.charges >= case.setting.delivery_limit:
            return run[:1]
        return run[: n if cell.status == "free" else min(n, cell.most)]
    return None


def _part(case: _Case, record: Any) -> list[int] | None:
    """The offsets named, if one claimed interval of that owner and epoch covers them."""
    offsets = list(range(record.start, record.end))
    sender = (record.client, record.instance)
    is_held = all(
        offset in case.cells and case.cells[offset].owner == sender and case.cells[offset].epoch == record.epoch
        for offset in offsets
    )
    return offsets if offsets and is_held else None


def _range_acked(case: _Case, record: RangeAcked) -> Answer:
    part = _part(case, record)
    if part is None:
        return case.unchanged if _is_finished(case, record) else case.refused
    if case.cells[part[0]].is_to_bury:
        return case.refused
    return _finished(case, part, "done")


def _is_finished(case: _Case, record: RangeAcked) -> bool:
    frontier = case.before.frontier
    if record.start >= record.end or frontier is None or record.end > frontier:
        return False
    open_ones = {offset for offset, cell in case.cells.items() if not cell.is_finished}
    return open_ones.isdisjoint(range(record.start, record.end))


def _range_buried(case: _Case, record: RangeBuried) -> Answer:
    part = _part(case, record)
    if part is None or not case.cells[part[0]].is_to_bury:
        return case.refused
    return _finished(case, part, "dead")


def _finished(case: _Case, part: list[int], status: str) -> Answer:
    for offset in part:
        old = case.cells[offset]
        case.cells[offset] = Cell(status, old.deliveries, old.charges)
    return case.accepted(case.moved(case.before, None))


def _range_released(case: _Case, record: RangeReleased) -> Answer:
    part = _part(case, record)
    if part is None:
        return case.refused
    for offset in part:
        old = case.cells[offset]
        counted = (old.deliveries, old.charges + 1) if record.counts else (old.deliveries - 1, old.charges)
        case.cells[offset] = Cell("free", *counted)
    return case.accepted(case.before)


def _range_renewed(case: _Case, record: RangeRenewed) -> Answer:
    sender = (record.client, record.instance)
    held = [offset for offset, cell in case.cells.items() if cell.owner == sender and cell.epoch == record.epoch]
    for offset in held:
        case.cells[offset] = case.cells[offset]._replace(renewed_ms=case.clock_ms)
    return case.accepted(case.before) if held else case.refused


def _range_fenced(case: _Case, record: RangeFenced) -> Answer:
    left = [cell for cell in case.cells.values() if cell.epoch == record.epoch]
    if not left or left[0].producer is None or case.is_live(left[0]):
        return case.refused
    case.end_epochs(record.epoch)
    return case.accepted(case.before)


_RULES: Mapping[type[Record], Callable[[_Case, Any], Answer]] = {
    Claimed: _claimed,
    Heartbeat: _heartbeat,
    ClaimReleased: _released,
    Intended: _intended,
    ProducersFenced: _producers_fenced,
    GroupPaused: _paused,
    RangeClaimed: _range_claimed,
    RangeAcked: _range_acked,
    RangeReleased: _range_released,
    RangeBuried: _range_buried,
    RangeRenewed: _range_renewed,
    RangeFenced: _range_fenced,
}
