"""What workers do around a lease, step by step, on the real machine: every interleaving, with pauses and crashes.

Here: at least once, with retries, per-key order (all offsets have one key) and dead letters. Nothing waits for time:
between any two steps of a worker any number of steps of others may pass, its lease may run out, its records may land
late or twice, or it may never move again. So whatever holds here holds for every pause and every crash.

A *haste* is something that a hasty worker would do; the search finds what it breaks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from penstock.ledger.codec import Record
from penstock.ledger.machine import Kind
from penstock.queue.records import Acked, Buried, Copied, Released, Renewed, Taken
from penstock.queue.state import QueueMachine
from penstock.testing.explore import Exploration, Move, explore
from penstock.testing.queue_log import LEASE_MS, Landed, QueueLog, epochs_named, founded, ranked, record_key


class Haste(Enum):
    """What a hasty worker does."""

    COPIES_BEFORE_THE_VERDICT = auto()
    TELLS_OF_A_COPY_IT_HAS_NOT_MADE = auto()
    HANDLES_BEHIND_ANOTHERS = auto()
    ACKS_BEFORE_HANDLING = auto()


class Step(Enum):
    ASK = "asks"
    READ = "waits for its answer"
    HANDLE = "has messages in hand"


class Worker(NamedTuple):
    name: str
    step: Step = Step.ASK
    epoch: int = -1
    hand: tuple[int, ...] = ()
    """What it has still to handle, in order."""
    charges: tuple[int, ...] = ()
    """Of those, as read back with the grant."""
    is_behind: bool = False
    """Whether, as of the grant, an earlier one of the same key was in other hands."""
    answer: Landed | None = None
    to_copy: tuple[int, ...] = ()
    """Burials that it has read back as accepted."""
    asks: tuple[tuple[int, int], ...] = ()
    """The ranges that it will ask for, one after the other."""
    renewals_left: int = 0
    lives_left: int = 0
    completes: bool = False
    """Whether it makes the copies that others owe."""


class Flight(NamedTuple):
    """A record on its way."""

    sender: int
    record: Record


class World(NamedTuple):
    log: QueueLog
    workers: tuple[Worker, ...]
    flying: tuple[Flight, ...] = ()
    doubles_left: int = 0
    expiries_left: int = 0
    failures: tuple[int, ...] = ()
    """How often each message really failed, in its handler or by the loss of a lease that had nothing else in it."""
    handled: frozenset[int] = frozenset()
    copies: frozenset[int] = frozenset()
    """What is in the topic of dead letters."""
    acked: frozenset[int] = frozenset()
    trouble: str | None = None


class WorkerModel:
    """Two workers share a few messages; nothing may be lost, overtaken, or buried before its time."""

    def __init__(
        self,
        *workers: Worker,
        machine: type[QueueMachine] = QueueMachine,
        haste: Haste | None = None,
        messages: int = 2,
        attempts_max: int = 1,
        doubles: int = 1,
        expiries: int = 2,
        flying_max: int = 2,
        fails: bool = True,
    ) -> None:
        self._haste, self._attempts_max, self._flying_max, self._fails = haste, attempts_max, flying_max, fails
        self._initial = World(
            founded(machine, messages),
            workers,
            doubles_left=doubles,
            expiries_left=expiries,
            failures=(0,) * messages,
        )

    def search(self, *, states_max: int = 2_000_000) -> Exploration:
        return explore(self._initial, self._moves, self._check, key=self._key, states_max=states_max)

    # What must hold

    def _check(self, world: World) -> str | None:
        view = world.log.view
        for number, spot in enumerate(view.spots):
            if number in world.copies and number in world.acked:
                return f"{number} has a dead letter, and is acked"
            if number in view.dead and number not in world.copies:
                return f"{number} is dead without a letter"
            if spot.is_finished and number not in world.acked and number not in view.dead:
                return f"{number} is lost: finished, but neither acked nor dead"
        unhandled = world.acked - world.handled
        if unhandled:
            return f"{sorted(unhandled)} are acked, and nobody handled them"
        return world.trouble

    def _after_landing(self, before: World, record: Record, landed: Landed) -> str | None:
        """Properties of a single landing, given the ledger before it."""
        spots = before.log.view.spots
        if isinstance(record, Acked) and landed.is_effective:
            for number in landed.covered:
                ahead = [n for n in range(number) if not spots[n].is_finished and n not in landed.covered]
                overtaken = [n for n in ahead if (spots[n].status, spots[n].epoch) != ("leased", record.epoch)]
                overtaken = [n for n in overtaken if spots[n].status != "buried"]
                if overtaken:
                    return f"{number} was finished while {overtaken}, of the same key, were in other hands"
        if isinstance(record, Buried) and landed.is_effective:
            early = [n for n in landed.covered if before.failures[n] < self._attempts_max]
            if early:
                return f"{early} were buried after {[before.failures[n] for n in early]} failures"
        return None

    # What can happen

    def _moves(self, world: World) -> Iterator[Move[World]]:
        if world.expiries_left and world.log.has_valid_leases():
            yield Move(
                "a lease time passes", world._replace(log=world.log.aged(), expiries_left=world.expiries_left - 1)
            )
        for flight in dict.fromkeys(world.flying):
            yield self._landing(world, flight, twice=False)
            if world.doubles_left:
                yield self._landing(world, flight, twice=True)
        for index, worker in enumerate(world.workers):
            yield from self._steps(world, index, worker)
            if worker.lives_left and worker.step is not Step.ASK:
                yield self._crash(world, index, worker)

    def _landing(self, world: World, flight: Flight, *, twice: bool) -> Move[World]:
        landed, log = world.log.appended(flight.record)
        flying = list(world.flying)
        if not twice:
            flying.remove(flight)
        trouble = self._after_landing(world, flight.record, landed)
        after = world._replace(
            log=log, flying=tuple(flying), doubles_left=world.doubles_left - twice, trouble=trouble or world.trouble
        )
        if isinstance(flight.record, Taken):
            after = after._replace(failures=_with_lost(world, log))
        if isinstance(flight.record, Acked) and landed.is_effective:
            after = after._replace(acked=after.acked | set(landed.covered))
        worker = world.workers[flight.sender]
        if isinstance(flight.record, Taken) and worker.step is Step.READ and worker.name == flight.record.worker:
            after = _placed(after, flight.sender, _told(worker, landed, log))
        if isinstance(flight.record, Buried) and landed.is_effective:
            after = _placed(after, flight.sender, worker._replace(to_copy=(*worker.to_copy, *landed.covered)))
        name = type(flight.record).__name__
        label = f"{name} of {worker.name} lands{' and is still in flight' if twice else ''}: {landed.kind.value}"
        return Move(label, after, None, tuple(_landmarks(world, flight, landed, twice)))

    def _crash(self, world: World, index: int, worker: Worker) -> Move[World]:
        """What it had sent may still land."""
        again = Worker(
            f"{worker.name}'", asks=worker.asks[:1], lives_left=worker.lives_left - 1, completes=worker.completes
        )
        after = _placed(world, index, again)
        return Move(f"{worker.name} crashes", after, None, ("crash with records in flight",) if world.flying else ())

    def _steps(self, world: World, index: int, worker: Worker) -> Iterator[Move[World]]:
        name, has_room = worker.name, len(world.flying) < self._flying_max
        if worker.step is Step.ASK and worker.asks and has_room:
            first, *rest = worker.asks
            asked = worker._replace(step=Step.READ, asks=tuple(rest), answer=None)
            taken = Taken(name, 0, (first,), LEASE_MS, alone=first[1] - first[0] == 1)
            yield Move(f"{name} asks for {first}", _sent(_placed(world, index, asked), index, taken))
        if worker.step is Step.READ and worker.answer is not None:
            yield Move(f"{name} reads its answer", _placed(world, index, _answered(worker, worker.answer)))
        if worker.step is Step.HANDLE and worker.renewals_left and has_room:
            renewing = worker._replace(renewals_left=worker.renewals_left - 1)
            yield Move(f"{name} renews", _sent(_placed(world, index, renewing), index, Renewed(name, (worker.epoch,))))
        if worker.step is Step.HANDLE and has_room:
            yield from self._handlings(world, index, worker)
        if worker.to_copy and has_room:
            yield from self._copyings(world, index, worker)
        owed = [number for number, spot in enumerate(world.log.view.spots) if spot.status == "buried"]
        if owed and not worker.to_copy and worker.completes and worker.step is Step.ASK:
            # Whoever owns the partition completes what another one left.
            yield Move(f"{name} sees burials", _placed(world, index, worker._replace(to_copy=tuple(owed))))

    def _handlings(self, world: World, index: int, worker: Worker) -> Iterator[Move[World]]:
        first, *rest = worker.hand
        left = worker._replace(hand=tuple(rest), charges=worker.charges[1:]) if rest else _idle(worker)
        everything = ((first, worker.hand[-1] + 1),)
        if worker.is_behind and self._haste is not Haste.HANDLES_BEHIND_ANOTHERS:
            given_back = Released(worker.epoch, everything, 0, counts=False)
            yield Move(
                f"{worker.name} gives back {first}", _sent(_placed(world, index, _idle(worker)), index, given_back)
            )
            return
        acked = _sent(_placed(world, index, left), index, Acked(worker.epoch, ((first, first + 1),)))
        is_hasty = self._haste is Haste.ACKS_BEFORE_HANDLING
        handled = acked if is_hasty else acked._replace(handled=world.handled | {first})
        yield Move(f"{worker.name} handles and acks {first}", handled)
        if self._fails:
            yield self._failure(world, index, worker)

    def _failure(self, world: World, index: int, worker: Worker) -> Move[World]:
        """The handler raises: a counted release or, at the limit, a burial. What is behind it is given back."""
        first, *rest = worker.hand
        failures = tuple(count + (number == first) for number, count in enumerate(world.failures))
        is_last = worker.charges[0] + 1 >= self._attempts_max
        here = ((first, first + 1),)
        verdict: Record = (
            Buried(worker.epoch, here, "failed", "E") if is_last else Released(worker.epoch, here, 0, counts=True)
        )
        after = _placed(world._replace(failures=failures), index, _idle(worker))
        after = _sent(after, index, verdict)
        if rest:
            after = _sent(after, index, Released(worker.epoch, ((rest[0], rest[-1] + 1),), 0, counts=False))
        if is_last and self._haste is Haste.COPIES_BEFORE_THE_VERDICT:
            after = after._replace(copies=after.copies | {first})
        return Move(f"{worker.name} fails at {first}", after)

    def _copyings(self, world: World, index: int, worker: Worker) -> Iterator[Move[World]]:
        first, *rest = worker.to_copy
        told = _sent(_placed(world, index, worker._replace(to_copy=tuple(rest))), index, Copied(((first, first + 1),)))
        is_hasty = self._haste is Haste.TELLS_OF_A_COPY_IT_HAS_NOT_MADE
        yield Move(f"{worker.name} copies {first}", told if is_hasty else told._replace(copies=world.copies | {first}))

    def _key(self, world: World) -> Hashable:
        named = [epoch for flight in world.flying for epoch in epochs_named(flight.record)]
        rank = ranked(
            world.log.epochs(),
            named,
            (worker.epoch for worker in world.workers),
            (worker.answer.offset for worker in world.workers if worker.answer is not None),
        )
        workers = tuple(
            worker._replace(
                epoch=rank(worker.epoch),
                answer=worker.answer and worker.answer._replace(offset=rank(worker.answer.offset)),
            )
            for worker in world.workers
        )
        flying = tuple(sorted((flight.sender, repr(record_key(flight.record, rank))) for flight in world.flying))
        budgets = (world.doubles_left, world.expiries_left)
        failures = tuple(min(count, self._attempts_max) for count in world.failures)
        # Who handles before it acks has always handled what is acked.
        handled = world.handled if self._haste is Haste.ACKS_BEFORE_HANDLING else None
        facts = (failures, handled, world.copies, world.acked)
        return world.log.key(rank), workers, flying, budgets, facts


def _with_lost(world: World, log: QueueLog) -> tuple[int, ...]:
    lost = [
        number
        for epoch, lease in world.log.view.leases
        if lease.alone and not log.view.lease(epoch)
        for number in lease.held
    ]
    return tuple(count + (number in lost) for number, count in enumerate(world.failures))


def _told(worker: Worker, landed: Landed, log: QueueLog) -> Worker:
    """With the answer, and what the ledger said at that very record: later news it may not have read."""
    spots = log.view.spots
    first = landed.covered[0] if landed.covered else 0
    is_behind = any(spot.status not in ("finished", "buried") for spot in spots[:first])
    charges = tuple(spots[number].charges for number in landed.covered)
    return worker._replace(answer=landed, is_behind=is_behind, charges=charges)


def _answered(worker: Worker, answer: Landed) -> Worker:
    if not answer.is_effective:
        return _idle(worker)
    return worker._replace(step=Step.HANDLE, answer=None, epoch=answer.offset, hand=answer.covered)


def _idle(worker: Worker) -> Worker:
    """With nothing in hand. Without anything more to ask for it only completes copies."""
    return worker._replace(step=Step.ASK, epoch=-1, hand=(), charges=(), is_behind=False, answer=None, renewals_left=0)


def _sent(world: World, sender: int, record: Record) -> World:
    return world._replace(flying=(*world.flying, Flight(sender, record)))


def _placed(world: World, index: int, worker: Worker) -> World:
    return world._replace(workers=(*world.workers[:index], worker, *world.workers[index + 1 :]))


def _landmarks(world: World, flight: Flight, landed: Landed, twice: bool) -> Iterator[str]:
    record, spots = flight.record, world.log.view.spots
    if twice:
        yield "a record lands twice"
    if isinstance(record, Taken) and landed.is_effective:
        ended = {spots[number].epoch for number in landed.covered if spots[number].status == "leased"}
        if ended:
            yield "grant after expiry"
        if any(spot.epoch in ended for number, spot in enumerate(spots) if number not in landed.covered):
            yield "partial re-grant"
    epoch = getattr(record, "epoch", None)
    is_over = epoch is not None and world.log.view.lease(epoch) is None
    if is_over and landed.kind is Kind.IGNORED:
        if isinstance(record, Buried):
            yield "burial by a zombie"
        if isinstance(record, Acked):
            lost = {spot.status for spot in spots if spot.losses}
            yield "late ack after a partial re-grant" if lost >= {"ready", "leased"} else "ack by a zombie"
    lease = None if epoch is None else world.log.view.lease(epoch)
    if isinstance(record, Acked) and landed.is_effective and lease is not None and not world.log.is_valid(lease):
        yield "late ack after expiry"
