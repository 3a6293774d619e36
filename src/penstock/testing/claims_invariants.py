"""What must hold whenever a coordination record was judged: invariants first, then the rule for that very record.

The checker watches transitions from outside. It asks the machine nothing: who is valid, what is finished and what may
be granted it works out itself, from plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.claims.records import Claimed, ClaimReleased, RangeClaimed, Slot
from penstock.ledger.machine import Kind
from penstock.testing.claims_rules import expected
from penstock.testing.claims_view import Setting, Transition, View


def violation(seen: Transition, setting: Setting, slot: Slot) -> str | None:
    """The first thing that is wrong with a transition: an invariant, or what only the record's own rule forbids."""
    for invariant in INVARIANTS:
        for wrong in invariant(seen, setting):
            return f"{invariant.__name__}: {wrong}"
    return broken_rule(seen, setting, slot)


def broken_rule(seen: Transition, setting: Setting, slot: Slot) -> str | None:
    kind, after = expected(seen.record, seen.offset, seen.clock_ms, seen.before, setting, slot)
    name = type(seen.record).__name__
    if seen.kind is not kind:
        return f"rule of {name}: {seen.kind.value}, must be {kind.value}"
    if seen.after == after:
        return None
    differing = [field for field in View._fields if getattr(seen.after, field) != getattr(after, field)]
    details = "; ".join(
        f"{field} is {getattr(seen.after, field)}, must be {getattr(after, field)}" for field in differing
    )
    return f"rule of {name}: {details}"


# Invariants


def refused_records_change_nothing(seen: Transition, setting: Setting) -> Iterator[str]:
    if seen.kind in (Kind.IGNORED, Kind.UNCHANGED) and seen.before != seen.after:
        yield f"{seen.kind.value}, yet the slot changed"


def epochs_never_go_down(seen: Transition, setting: Setting) -> Iterator[str]:
    if seen.after.epoch < seen.before.epoch:
        yield f"from {seen.before.epoch} to {seen.after.epoch}"


def epochs_are_offsets(seen: Transition, setting: Setting) -> Iterator[str]:
    if seen.after.epoch not in (seen.before.epoch, seen.offset):
        yield f"epoch {seen.after.epoch} by the record at {seen.offset}"


def owners_change_only_with_a_larger_epoch(seen: Transition, setting: Setting) -> Iterator[str]:
    before, after = seen.before, seen.after
    if after.owner not in (before.owner, None) and after.epoch <= before.epoch:
        yield f"{before.owner} became {after.owner} under epoch {after.epoch}"
    if after.owner not in (before.owner, None) and not isinstance(seen.record, Claimed):
        yield f"{after.owner} was granted the slot by {type(seen.record).__name__}"


def valid_owners_are_left_alone(seen: Transition, setting: Setting) -> Iterator[str]:
    """Only its own release, or its own client's reclaim, ends a valid tenure."""
    before, record = seen.before, seen.record
    if before.owner is None or not setting.is_valid(before.renewed_ms, seen.clock_ms):
        return
    if (seen.after.owner, seen.after.epoch) == (before.owner, before.epoch):
        return
    sender = (getattr(record, "client", None), getattr(record, "instance", None))
    is_own_release = isinstance(record, ClaimReleased) and (sender, record.epoch) == (before.owner, before.epoch)
    is_reclaim = isinstance(record, Claimed) and record.reclaim and record.client == before.owner[0]
    if not is_own_release and not is_reclaim:
        yield f"{before.owner} was valid, and lost it to {type(record).__name__} of {sender}"


def positions_go_back_only_by_reset(seen: Transition, setting: Setting) -> Iterator[str]:
    before, after = seen.before.position, seen.after.position
    is_reset = isinstance(seen.record, ClaimReleased) and seen.record.reset
    if before is not None and (after is None or after < before) and not is_reset:
        yield f"from {before} to {after}"


def cells_cover_position_to_frontier(seen: Transition, setting: Setting) -> Iterator[str]:
    after = seen.after
    offsets = [offset for offset, _ in after.cells]
    if after.position is None:
        if offsets or after.frontier is not None:
            yield f"no position, but {offsets} up to {after.frontier}"
    elif after.frontier is None or offsets != list(range(after.position, after.frontier)):
        yield f"{offsets} between position {after.position} and frontier {after.frontier}"


def positions_stand_before_something_unfinished(seen: Transition, setting: Setting) -> Iterator[str]:
    if seen.after.cells and seen.after.cells[0][1].is_finished:
        yield f"{seen.after.position} is {seen.after.cells[0][1].status}"


def live_ranges_and_a_live_owner_never_meet(seen: Transition, setting: Setting) -> Iterator[str]:
    after = seen.after
    is_owned = after.owner is not None and setting.is_valid(after.renewed_ms, seen.clock_ms)
    live = [
        offset
        for offset, cell in after.cells
        if cell.renewed_ms is not None and setting.is_valid(cell.renewed_ms, seen.clock_ms)
    ]
    if is_owned and live:
        yield f"{after.owner} owns it, and {live} are claimed"


def live_cells_are_left_alone(seen: Transition, setting: Setting) -> Iterator[str]:
    """Who holds a valid range keeps it until it says otherwise itself."""
    after = dict(seen.after.cells)
    sender = (getattr(seen.record, "client", None), getattr(seen.record, "instance", None))
    for offset, cell in seen.before.cells:
        if cell.renewed_ms is None or not setting.is_valid(cell.renewed_ms, seen.clock_ms):
            continue
        is_kept = offset in after and (after[offset].owner, after[offset].epoch) == (cell.owner, cell.epoch)
        if not is_kept and sender != cell.owner:
            yield f"{offset} of {cell.owner} was taken by {type(seen.record).__name__} of {sender}"


def epochs_of_ranges_end_whole(seen: Transition, setting: Setting) -> Iterator[str]:
    """Where one of its offsets went to another epoch or was lost, no other of them is still held under it."""
    after = dict(seen.after.cells)
    before = [(offset, cell) for offset, cell in seen.before.cells if cell.epoch is not None]
    over = {
        cell.epoch
        for offset, cell in before
        if offset in after and after[offset].epoch != cell.epoch and after[offset].status in ("lost", "claimed")
    }
    halves = [offset for offset, cell in after.items() if cell.epoch in over]
    if halves:
        yield f"epochs {sorted(epoch for epoch in over if epoch is not None)} are over, yet hold {halves}"


def finished_cells_stay_finished(seen: Transition, setting: Setting) -> Iterator[str]:
    after = dict(seen.after.cells)
    for offset, cell in seen.before.cells:
        if cell.is_finished and offset in after and after[offset].status != cell.status:
            yield f"{offset} was {cell.status} and is {after[offset].status}"


def frontiers_stay_within_the_window(seen: Transition, setting: Setting) -> Iterator[str]:
    after = seen.after
    if after.frontier is not None and after.position is not None and after.frontier - after.position > setting.window:
        yield f"frontier {after.frontier} is more than {setting.window} beyond {after.position}"


def producers_leave_only_when_listed(seen: Transition, setting: Setting) -> Iterator[str]:
    listed: set[str] = set(getattr(seen.record, "fenced", ())) | set(getattr(seen.record, "ids", ()))
    for beat in getattr(seen.record, "beats", ()):
        listed |= set(beat.fenced)
    gone = seen.before.producers - seen.after.producers - listed
    if gone:
        yield f"{sorted(gone)} are not known to be fenced"


def ranges_are_not_granted_beside_unfenced_producers(seen: Transition, setting: Setting) -> Iterator[str]:
    if not isinstance(seen.record, RangeClaimed) or seen.kind is not Kind.ACCEPTED:
        return
    if seen.before.producers:
        yield f"{sorted(seen.before.producers)} are not fenced"
    granted = [offset for offset, cell in seen.after.cells if cell.epoch == seen.offset]
    unfenced = [offset for offset, cell in seen.before.cells if offset in granted and cell.producer is not None]
    if unfenced:
        yield f"{unfenced} named a producer that is not fenced"


def expired_leases_do_not_come_back_after_a_grant(seen: Transition, setting: Setting) -> Iterator[str]:
    """A grant of either kind ends whatever the other kind still held."""
    if not isinstance(seen.record, Claimed | RangeClaimed) or seen.kind is not Kind.ACCEPTED:
        return
    if isinstance(seen.record, RangeClaimed) and seen.after.owner is not None:
        yield f"{seen.after.owner} still has the whole slot"
    held = [offset for offset, cell in seen.after.cells if cell.epoch is not None]
    if isinstance(seen.record, Claimed) and held:
        yield f"{held} are still held"


INVARIANTS: tuple[Callable[[Transition, Setting], Iterator[str]], ...] = (
    refused_records_change_nothing,
    epochs_never_go_down,
    epochs_are_offsets,
    owners_change_only_with_a_larger_epoch,
    valid_owners_are_left_alone,
    positions_go_back_only_by_reset,
    cells_cover_position_to_frontier,
    positions_stand_before_something_unfinished,
    live_ranges_and_a_live_owner_never_meet,
    live_cells_are_left_alone,
    epochs_of_ranges_end_whole,
    finished_cells_stay_finished,
    frontiers_stay_within_the_window,
    producers_leave_only_when_listed,
    ranges_are_not_granted_beside_unfenced_producers,
    expired_leases_do_not_come_back_after_a_grant,
)
