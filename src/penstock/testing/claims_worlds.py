"""Small worlds around the claims machine: a few members, one slot, a few offsets, and every record they could write.

`OWNERS` moves the whole slot between three instances of two clients; `RANGES` shares a few offsets between two members.
Each also lets members say what they should not: other members' epochs, epochs that are over, ranges that were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from penstock.claims.intervals import Intervals
from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
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
from penstock.claims.state import Claims
from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.testing.claims_invariants import violation
from penstock.testing.claims_view import Owner, Setting, Transition, View, view_of
from penstock.testing.explore import Exploration, Fault, Move, explore

SLOT = Slot("g", "t", 0)
TICKS_MS = (1, 2)
NEVER_GRANTED = 0
"""The offset of the genesis: a forged epoch."""


Check = Callable[[Transition, Setting, Slot], str | None]


class Node(NamedTuple):
    """A state of the world: the machine after `offset` records, and the last epoch that each member was granted."""

    machine: Claims
    offset: int
    clock_ms: int
    view: View
    granted: tuple[tuple[Owner, int], ...] = ()


class World(NamedTuple):
    name: str
    setting: Setting
    records: Callable[[Node], Iterable[Record]]
    depth_max: int


def search(
    world: World, machine: type[Claims] = Claims, *, check: Check = violation, depth_max: int | None = None
) -> Exploration:
    """Every log that the world can write, up to its depth, with every transition checked."""
    first = machine()
    setting = world.setting
    first.apply(ClaimsFounded(1, setting.heartbeat_ms, setting.window, setting.delivery_limit), 0, 0)
    initial = Node(first, 1, 0, view_of(first, SLOT))
    return explore(
        initial,
        lambda node: _moves(world, node, check),
        key=lambda node: _key(node, setting),
        depth_max=world.depth_max if depth_max is None else depth_max,
    )


def shortest_fault(
    machine: type[Claims], *, worlds: Iterable[World], check: Check = violation, depth_max: int = 4
) -> Fault | None:
    """The shortest log, of any of these worlds, on which the machine does wrong."""
    for depth in range(1, depth_max + 1):
        for world in worlds:
            fault = search(world, machine, check=check, depth_max=depth).fault
            if fault is not None:
                return fault
    return None


def _moves(world: World, node: Node, check: Check) -> Iterator[Move[Node]]:
    for tick_ms in TICKS_MS:
        yield Move(f"{tick_ms} ms pass", node._replace(offset=node.offset + 1, clock_ms=node.clock_ms + tick_ms))
    for record in world.records(node):
        twin = twin_of(node.machine)
        verdict = twin.apply(record, node.offset, node.clock_ms)
        after = view_of(twin, SLOT)
        seen = Transition(record, node.offset, node.clock_ms, verdict.kind, node.view, after)
        wrong = check(seen, world.setting, SLOT)
        granted = node.granted
        if after.epoch == node.offset:
            sender = (getattr(record, "client", ""), getattr(record, "instance", ""))
            granted = tuple(sorted({**dict(granted), sender: node.offset}.items()))
        there = Node(twin, node.offset + 1, node.clock_ms, after, granted)
        yield Move(f"{record} at {node.offset}", there, wrong, tuple(landmarks(seen, world.setting)))


def twin_of(machine: Claims) -> Claims:
    """An equal machine that shares nothing that can change."""
    twin = type(machine)(log_start=machine.log_start)
    twin.founded, twin.pauses = machine.founded, dict(machine.pauses)
    for slot, state in machine.slots.items():
        twin.slots[slot] = replace(
            state, producers=set(state.producers), map=Intervals(state.map.frontier, list(state.map.items))
        )
    return twin


def _key(node: Node, setting: Setting) -> Hashable:
    """The node without what the future does not depend on: epochs only by their order, times only by their age."""
    view, lease_ms = node.view, 2 * setting.heartbeat_ms
    epochs = {-1, view.epoch, *(epoch for _, epoch in node.granted)}
    epochs |= {cell.epoch for _, cell in view.cells if cell.epoch is not None}
    rank: dict[int | None, int | None] = {None: None, **{epoch: n for n, epoch in enumerate(sorted(epochs))}}

    def age(renewed_ms: int | None) -> int | None:
        return None if renewed_ms is None else min(lease_ms, node.clock_ms - renewed_ms)

    cells = tuple(
        (offset, cell._replace(epoch=rank[cell.epoch], renewed_ms=age(cell.renewed_ms))) for offset, cell in view.cells
    )
    pause = None if view.pause is None else (view.pause[0], max(0, view.pause[1] - node.clock_ms))
    known = tuple((member, rank[epoch]) for member, epoch in node.granted)
    owner_age = None if view.owner is None else age(view.renewed_ms)
    return view._replace(epoch=rank[view.epoch] or 0, renewed_ms=owner_age or 0, cells=cells, pause=pause), known


# What members could write


def _owner_records(node: Node) -> Iterator[Record]:
    view, granted = node.view, dict(node.granted)
    everybody = tuple(sorted(view.producers))
    for client, instance in (("a", "1"), ("a", "2"), ("b", "1")):
        me, own = (client, instance), f"p{client}"
        yield Claimed(SLOT, *me)
        yield Claimed(SLOT, *me, producer=own)
        yield Claimed(SLOT, *me, reclaim=True)
        yield from (Claimed(SLOT, *me, expects=epoch) for epoch in {view.epoch, -1})
        others = tuple(name for name in everybody if name != own)
        for epoch in _epochs(view.epoch, granted.get(me)):
            yield Heartbeat(*me, (Beat(SLOT, epoch),))
            yield from (Heartbeat(*me, (Beat(SLOT, epoch, position),)) for position in (0, 1, 2))
            yield Heartbeat(*me, (Beat(SLOT, epoch, 1, own),))
            if others:
                yield Heartbeat(*me, (Beat(SLOT, epoch, None, own, others),))
                yield Heartbeat(*me, (Beat(SLOT, epoch, None, None, others[:1]),))
            yield ClaimReleased(SLOT, *me, epoch, 1)
            yield ClaimReleased(SLOT, *me, epoch, 0, reset=True, fenced=everybody)
            yield from (Intended(SLOT, *me, epoch, upto) for upto in (1, 2))
    if everybody:
        yield ProducersFenced(SLOT, "b", "1", everybody[:1])
        yield from (ProducersFenced(SLOT, "b", "1", everybody, epoch) for epoch in {view.epoch, NEVER_GRANTED})
    yield from (GroupPaused("g", by, node.clock_ms + until_ms) for by in "ab" for until_ms in (0, 2))


def _epochs(present: int, own: int | None) -> tuple[int, int]:
    """The slot's epoch, and one that is over: the member's own last one, or else one that nobody was ever granted."""
    return present, NEVER_GRANTED if own in (None, present) else own or NEVER_GRANTED


def _range_records(node: Node) -> Iterator[Record]:
    view, granted = node.view, dict(node.granted)
    held = sorted({cell.epoch for _, cell in view.cells if cell.epoch is not None})
    for client in "ab":
        me = (client, "1")
        yield from (RangeClaimed(SLOT, *me, n) for n in (1, 3))
        yield RangeClaimed(SLOT, *me, 2, 1, producer=f"p{client}")
        yield Claimed(SLOT, *me, producer="pb" if client == "b" else None)
        for epoch in {*held, granted.get(me, NEVER_GRANTED)}:
            yield RangeRenewed(SLOT, *me, epoch)
            yield RangeFenced(SLOT, *me, epoch)
            for start, end in _spans(node, epoch):
                yield RangeAcked(SLOT, *me, epoch, start, end)
                yield from (RangeReleased(SLOT, *me, epoch, start, end, counts) for counts in (True, False))
                yield RangeBuried(SLOT, *me, epoch, start, end)
        if view.owner is not None:
            yield Heartbeat(*me, (Beat(SLOT, view.epoch, view.position, None, tuple(sorted(view.producers))),))
            yield ClaimReleased(SLOT, *me, view.epoch, view.position)
    if view.producers:
        yield ProducersFenced(SLOT, "b", "1", tuple(sorted(view.producers)))
    yield GroupPaused("g", "a", node.clock_ms + 2)


def _spans(node: Node, epoch: int) -> list[tuple[int, int]]:
    """The first, the last and all of what that epoch holds, or of everything if it holds nothing."""
    offsets = [offset for offset, cell in node.view.cells if cell.epoch == epoch]
    offsets = offsets or [offset for offset, _ in node.view.cells]
    if not offsets:
        return []
    first, last = offsets[0], offsets[-1]
    return sorted({(first, first + 1), (last, last + 1), (first, last + 1)})


OWNERS = World("owners", Setting(heartbeat_ms=1, window=1, delivery_limit=1), _owner_records, depth_max=4)
RANGES = World("ranges", Setting(heartbeat_ms=1, window=4, delivery_limit=2), _range_records, depth_max=4)
GRAVES = World("graves", Setting(heartbeat_ms=1, window=2, delivery_limit=1), _range_records, depth_max=4)
WORLDS = (OWNERS, RANGES, GRAVES)


# What is worth counting


def landmarks(seen: Transition, setting: Setting) -> Iterator[str]:
    """The interesting things that this transition is."""
    record, before, after, clock_ms = seen.record, seen.before, seen.after, seen.clock_ms
    is_accepted = seen.kind is Kind.ACCEPTED
    was_valid = before.owner is not None and setting.is_valid(before.renewed_ms, clock_ms)
    if isinstance(record, Claimed) and is_accepted:
        if before.owner is not None and not was_valid and before.owner[0] != record.client:
            yield "takeover after expiry"
        if was_valid:
            yield "reclaim fences the older instance"
        if len(before.producers) == 2 and record.producer is not None:
            yield "claim inherits two producers"
        if before.intent is not None:
            yield "intent dropped by a grant"
        if any(cell.producer is not None for _, cell in before.cells):
            yield "claim inherits the producer of a range"
        if any(cell.status == "done" for _, cell in before.cells):
            yield "claim over a done island"
    if isinstance(record, Heartbeat):
        if is_accepted and not was_valid:
            yield "late heartbeat after expiry"
        if not is_accepted and record.beats[0].epoch != before.epoch:
            yield "stale epoch refused"
        if is_accepted and before.producers - after.producers:
            yield "producers fenced by the owner"
        if is_accepted and before.intent is not None and after.intent is None:
            yield "intent dropped by the commit"
    if isinstance(record, ClaimReleased) and is_accepted and record.reset and (before.position or 0) > 0:
        yield "reset moves the position back"
    if isinstance(record, ProducersFenced) and not was_valid and record.epoch not in (None, before.epoch):
        yield "fenced before a later grant, refused"
    if seen.kind is Kind.IGNORED and before.pause is not None and before.pause[1] > clock_ms:
        yield "refused during a pause"
    yield from _range_landmarks(seen, setting)


def _range_landmarks(seen: Transition, setting: Setting) -> Iterator[str]:
    record, before, after = seen.record, dict(seen.before.cells), dict(seen.after.cells)
    is_accepted = seen.kind is Kind.ACCEPTED
    if isinstance(record, RangeClaimed) and is_accepted:
        granted = [offset for offset, cell in after.items() if cell.epoch == seen.offset]
        again = [before[offset] for offset in granted if offset in before]
        if again and again[0].status in ("lost", "claimed") and len(granted) < record.n:
            yield "lost range granted again in a smaller piece"
        if any(cell.epoch is not None for cell in again):
            yield "range taken from an expired holder"
        if granted and after[granted[0]].is_to_bury:
            yield "granted to be buried"
        if seen.before.owner is not None:
            yield "range ends an expired tenure"
    if isinstance(record, RangeClaimed) and not is_accepted and seen.before.producers:
        yield "range refused beside a producer"
    if isinstance(record, RangeFenced) and is_accepted:
        yield "range fenced"
    if isinstance(record, RangeBuried) and is_accepted:
        yield "burial"
    if isinstance(record, RangeAcked) and is_accepted and (seen.after.position or 0) > record.end:
        yield "position skips a done island"
    if isinstance(record, RangeAcked) and is_accepted:
        cell = before[record.start]
        if cell.renewed_ms is not None and not setting.is_valid(cell.renewed_ms, seen.clock_ms):
            yield "late ack after expiry"
    if isinstance(record, RangeAcked) and seen.kind is Kind.IGNORED and record.epoch < seen.before.epoch:
        yield "stale ack refused"
