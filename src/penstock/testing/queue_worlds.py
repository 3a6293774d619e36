"""Small worlds around the queue's machine: two workers, up to three offsets, and every record they could write.

`LEASES` moves offsets between leases, `PRODUCERS` between leases that must be fenced, `GRAVES` into the dead letters
and past everything that is not a lease. Each lets workers say what they should not: epochs of others, epochs that are
over, offsets that they do not hold; and everything late, and twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.queue.ranges import Ranges
from penstock.queue.records import (
    ALL,
    Acked,
    Buried,
    Copied,
    Dropped,
    Kept,
    LeaseFenced,
    Paused,
    Progressed,
    QueueFounded,
    QueuesChanged,
    Redriven,
    Released,
    Renewed,
    Resumed,
    Taken,
)
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine
from penstock.testing.explore import Exploration, Fault, Move, explore
from penstock.testing.queue_invariants import violation
from penstock.testing.queue_view import Transition, View, offsets_of, twin_of, view_of

LEASE_MS = 2
DELAY_MS = 2
TICKS_MS = (1, 2)
NEVER_GRANTED = 0
"""The offset of the genesis: a forged epoch."""
WORKERS = ("a", "b")

Check = Callable[[Transition], str | None]


class Node(NamedTuple):
    """A state of the world: the machine after `offset` records, and the last epoch that each worker was granted."""

    machine: QueueMachine
    offset: int
    clock_ms: int
    view: View
    granted: tuple[tuple[str, int], ...] = ()


class World(NamedTuple):
    name: str
    offsets: int
    records: Callable[[Node], Iterable[Record]]
    depth_max: int


def search(
    world: World, machine: type[QueueMachine] = QueueMachine, *, check: Check = violation, depth_max: int | None = None
) -> Exploration:
    """Every log that the world can write, up to its depth, with every transition checked."""
    first = machine()
    first.apply(QueueFounded(1, "t", 0, ()), 0, 0)
    return explore(
        Node(first, 1, 0, view_of(first, world.offsets)),
        lambda node: _moves(world, node, check),
        key=_key,
        depth_max=world.depth_max if depth_max is None else depth_max,
    )


def shortest_fault(
    machine: type[QueueMachine], *, worlds: Iterable[World], check: Check = violation, depth_max: int = 5
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
        covered = offsets_of(verdict.covered) if isinstance(verdict, Ruling) else frozenset[int]()
        after = view_of(twin, world.offsets)
        seen = Transition(record, node.offset, node.clock_ms, verdict.kind, covered, node.view, after)
        granted = node.granted
        if isinstance(record, Taken) and verdict.kind in (Kind.ACCEPTED, Kind.PARTIAL):
            granted = tuple(sorted({**dict(granted), record.worker: node.offset}.items()))
        there = Node(twin, node.offset + 1, node.clock_ms, after, granted)
        yield Move(f"{record} at {node.offset}", there, check(seen), tuple(landmarks(seen)))


def _key(node: Node) -> Hashable:
    """The node without what the future does not depend on: epochs only by their order, times only by their age."""
    view = node.view
    epochs = {-1, *(epoch for _, epoch in node.granted), *(epoch for epoch, _ in view.leases)}
    epochs |= {spot.epoch for spot in view.spots}
    rank = {epoch: number for number, epoch in enumerate(sorted(epochs))}
    spots = tuple(
        spot._replace(epoch=rank[spot.epoch], due_ms=max(0, spot.due_ms - node.clock_ms)) for spot in view.spots
    )
    leases = tuple(
        (rank[epoch], lease._replace(renewed_ms=min(lease.lease_ms, node.clock_ms - lease.renewed_ms)))
        for epoch, lease in view.leases
    )
    burials = tuple((rank[by], burial.reason, burial.held) for by, burial in view.burials)
    pauses = tuple((queue, pause[1] and max(0, pause[1] - node.clock_ms)) for queue, pause in view.pauses)
    granted = tuple((worker, rank[epoch]) for worker, epoch in node.granted)
    return spots, leases, burials, view.dead, pauses, view.queues, granted


# What workers could write


def _lease_records(node: Node) -> Iterator[Record]:
    size = len(node.view.spots)
    for worker in WORKERS:
        yield Taken(worker, 0, ((0, size),), LEASE_MS)
        yield Taken(worker, 0, ((0, 1),), LEASE_MS, alone=True)
        yield Taken(worker, 0, ((1, size),), LEASE_MS)
    for epoch in _epochs(node):
        for worker in WORKERS:
            yield Renewed(worker, (epoch,))
        for ranges in _stretches(node, epoch):
            yield Acked(epoch, ranges)
            yield Released(epoch, ranges, 0, counts=True)
            yield Released(epoch, ranges, DELAY_MS, counts=False)
        yield LeaseFenced(epoch)
    if len(node.view.leases) > 1:
        yield Renewed("a", tuple(epoch for epoch, _ in node.view.leases))
    yield Dropped(((0, 2),), "purged")


def _producer_records(node: Node) -> Iterator[Record]:
    for worker in WORKERS:
        yield Taken(worker, 0, ((0, 1),), LEASE_MS, f"p{worker}")
        yield Taken(worker, 0, ((0, 2),), LEASE_MS, f"p{worker}", alone=True)
        yield Taken(worker, 0, ((1, 2),), LEASE_MS)
    for epoch in _epochs(node):
        yield LeaseFenced(epoch)
        yield Renewed("a", (epoch,))
        yield Acked(epoch, ((0, 2),))
        yield Acked(epoch, ((0, 1),))
        yield Buried(epoch, ((1, 2),))
        yield Released(epoch, ((0, 1),), 0, counts=True)
    yield Dropped(((0, 2),), "foreign")
    yield Dropped(((0, 1),), "retention")


def _grave_records(node: Node) -> Iterator[Record]:
    for worker in WORKERS:
        yield Taken(worker, 0, ((0, 2),), LEASE_MS)
    yield Taken("b", 0, ((0, 1),), LEASE_MS, alone=True)
    for epoch in _epochs(node):
        for ranges in _stretches(node, epoch):
            yield Buried(epoch, ranges, "poison", "E")
        yield Acked(epoch, ((0, 2),))
        yield Released(epoch, ((0, 1),), 0, counts=False)
        yield Progressed(epoch, 0, b"1")
    for ranges in (((0, 2),), ((1, 2),)):
        yield Copied(ranges)
        yield Redriven(ranges, "ops")
        yield Dropped(ranges, "cancelled")
        yield Dropped(ranges, "retention")
        yield Kept(ranges)
    yield Paused(ALL, node.clock_ms + 2, "ops")
    yield Paused("q", None, "ops")
    yield Resumed(ALL, "ops")
    yield QueuesChanged(("q",), "ops")


def _epochs(node: Node) -> list[int]:
    """The leases that there are, and what is over: each worker's last one, or else one that nobody ever had."""
    live = {epoch for epoch, _ in node.view.leases}
    over = {epoch for _, epoch in node.granted} - live
    return sorted(live | (over or {NEVER_GRANTED}))


def _stretches(node: Node, epoch: int) -> list[Ranges]:
    """The first, the last and all of what that epoch holds, or of everything if it holds nothing."""
    lease = node.view.lease(epoch)
    held = lease.held if lease is not None else tuple(range(len(node.view.spots)))
    first, last = held[0], held[-1]
    return sorted({((first, first + 1),), ((last, last + 1),), ((0, len(node.view.spots)),)})


LEASES = World("leases", 3, _lease_records, depth_max=4)
PRODUCERS = World("producers", 2, _producer_records, depth_max=5)
GRAVES = World("graves", 2, _grave_records, depth_max=4)
WORLDS = (PRODUCERS, GRAVES, LEASES)


# What is worth counting


def landmarks(seen: Transition) -> Iterator[str]:
    """The interesting things that this transition is."""
    record, before = seen.record, seen.before
    is_effective = seen.kind in (Kind.ACCEPTED, Kind.PARTIAL)
    if isinstance(record, Taken) and is_effective:
        yield from _grants(seen, record)
    if isinstance(record, Taken) and seen.kind is Kind.IGNORED:
        asked = [before.spots[number] for number in sorted(offsets_of(record.ranges))]
        leases = [before.lease(spot.epoch) for spot in asked if spot.status == "leased"]
        expired = [lease for lease in leases if lease is not None and not lease.is_valid(seen.clock_ms)]
        if any(lease.producer is not None for lease in expired):
            yield "refused before the fence"
        if any(spot.status == "waiting" for spot in asked):
            yield "refused before it is due"
    if isinstance(record, Acked | Released | Buried | Renewed) and seen.kind is Kind.IGNORED:
        epoch = record.epochs[0] if isinstance(record, Renewed) else record.epoch
        if epoch != NEVER_GRANTED and before.lease(epoch) is None:
            yield _ZOMBIES[type(record)]
            lost = {spot.status for spot in before.spots if spot.losses}
            if isinstance(record, Acked) and lost >= {"ready", "leased"}:
                yield "late ack after a partial re-grant"
    if isinstance(record, Acked | Renewed) and is_effective:
        lease = before.lease(record.epochs[0] if isinstance(record, Renewed) else record.epoch)
        if lease is not None and not lease.is_valid(seen.clock_ms):
            yield "late ack after expiry" if isinstance(record, Acked) else "late renewal after expiry"
    if isinstance(record, LeaseFenced) and is_effective:
        yield "fenced"
    if isinstance(record, Copied) and is_effective and seen.after.position > before.position:
        yield "position passes at the copy"
    if isinstance(record, Dropped) and is_effective and any(before.spots[n].status == "leased" for n in seen.covered):
        yield "dropped out of an expired lease"


_ZOMBIES: dict[type[Record], str] = {
    Acked: "ack by a zombie",
    Released: "release by a zombie",
    Buried: "burial by a zombie",
    Renewed: "renewal by a zombie",
}


def _grants(seen: Transition, record: Taken) -> Iterator[str]:
    before = [seen.before.spots[number] for number in sorted(seen.covered)]
    if seen.kind is Kind.PARTIAL:
        yield "partial grant"
    if any(spot.status == "waiting" for spot in before):
        yield "grant when it is due"
    if any(spot.status == "leased" for spot in before):
        yield "grant after expiry"
        ended = {spot.epoch for spot in before if spot.status == "leased"}
        if any(set(lease.held) - seen.covered for epoch, lease in seen.before.leases if epoch in ended):
            yield "partial re-grant"
    if record.producer is not None and any(spot.losses and spot.status == "ready" for spot in before):
        yield "grant after a fence"
