"""Exactly once, step by step, on the real machine: every interleaving of workers whose acks are transactions.

What a handler sends and its `Acked` are committed together, under a transactional id that the lease names. The broker's
part is small: whoever initialises an id fences every producer that has it, and only the newest one commits.

A *shortcut* is something that a hasty worker would do; the search finds what it breaks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from penstock.ledger.codec import Record
from penstock.queue.records import Acked, LeaseFenced, Renewed, Taken
from penstock.queue.state import QueueMachine
from penstock.testing.explore import Exploration, Move, explore
from penstock.testing.queue_log import LEASE_MS, Landed, QueueLog, epochs_named, founded, ranked, record_key


class Shortcut(Enum):
    """What a hasty worker does."""

    INITIALISES_ITS_OWN_ID_AGAIN = auto()
    ACTS_UNDER_A_NEW_ID_ON_AN_OLD_LEASE = auto()
    ANNOUNCES_BEFORE_INITIALISING = auto()
    SAYS_FENCED_WITHOUT_FENCING = auto()
    FENCES_ONLY_THE_LAST = auto()
    COMMITS_BEFORE_THE_READ_BACK = auto()


class Step(Enum):
    INITIALISE = "initialises its id"
    ASK = "asks"
    READ = "waits for its answer"
    COMMIT = "commits effects and acks"
    FENCE = "initialises another's id"
    TELL = "tells that it is fenced"


class Worker(NamedTuple):
    name: str
    step: Step = Step.INITIALISE
    life: int = 1
    """The number in its transactional id: a new one after a fence or a crash."""
    is_live: bool = False
    """Whether its producer is the newest under its id."""
    epoch: int = -1
    hand: tuple[int, ...] = ()
    answer: Landed | None = None
    to_fence: tuple[int, ...] = ()
    """Epochs of leases that it has read to be expired, and that name a producer."""
    asks: tuple[tuple[int, int], ...] = ()
    renewals_left: int = 0
    crashes_left: int = 0

    @property
    def id(self) -> str:
        return f"p{self.name}{self.life}"


class World(NamedTuple):
    log: QueueLog
    workers: tuple[Worker, ...]
    flying: tuple[tuple[int, Record], ...] = ()
    doubles_left: int = 0
    expiries_left: int = 0
    effects: tuple[int, ...] = ()
    """How often the effects of each message were committed."""


class TransactionModel:
    """Workers share a few messages; the effects of each must be committed once, together with its ack."""

    def __init__(
        self,
        *workers: Worker,
        machine: type[QueueMachine] = QueueMachine,
        shortcut: Shortcut | None = None,
        messages: int = 1,
        doubles: int = 0,
        expiries: int = 2,
        flying_max: int = 2,
    ) -> None:
        self._shortcut, self._flying_max = shortcut, flying_max
        self._first = Step.ASK if shortcut is Shortcut.ANNOUNCES_BEFORE_INITIALISING else Step.INITIALISE
        started = tuple(worker._replace(step=self._first) for worker in workers)
        self._initial = World(founded(machine, messages), started, (), doubles, expiries, effects=(0,) * messages)

    def search(self, *, states_max: int = 1_000_000) -> Exploration:
        return explore(self._initial, self._moves, self._check, key=self._key, states_max=states_max)

    def _check(self, world: World) -> str | None:
        for number, (spot, effects) in enumerate(zip(world.log.view.spots, world.effects, strict=True)):
            if effects != (1 if spot.is_finished else 0):
                return f"not exactly once: {number} is {spot.status}, its effects were committed {effects} times"
        return None

    def _moves(self, world: World) -> Iterator[Move[World]]:
        if world.expiries_left and world.log.has_valid_leases():
            yield Move(
                "a lease time passes", world._replace(log=world.log.aged(), expiries_left=world.expiries_left - 1)
            )
        for flight in dict.fromkeys(world.flying):
            yield self._landing(world, *flight, twice=False)
            if world.doubles_left:
                yield self._landing(world, *flight, twice=True)
        for index, worker in enumerate(world.workers):
            yield from self._steps(world, index, worker)
            if worker.crashes_left and worker.step is not self._first:
                again = Worker(
                    worker.name,
                    self._first,
                    worker.life + 1,
                    asks=worker.asks[:1],
                    crashes_left=worker.crashes_left - 1,
                )
                yield Move(f"{worker.name} crashes and starts again", _placed(world, index, again))

    def _landing(self, world: World, sender: int, record: Record, *, twice: bool) -> Move[World]:
        landed, log = world.log.appended(record)
        flying = list(world.flying)
        if not twice:
            flying.remove((sender, record))
        after = world._replace(log=log, flying=tuple(flying), doubles_left=world.doubles_left - twice)
        worker = world.workers[sender]
        is_awaited = isinstance(record, Taken) and worker.step is Step.READ and record.producer == worker.id
        if is_awaited:
            after = _placed(after, sender, worker._replace(answer=landed))
        marks = tuple(self._landmarks(world, record, landed, twice))
        label = f"{type(record).__name__} of {worker.name} lands: {landed.kind.value} {list(landed.covered)}"
        return Move(label, after, None, marks)

    def _landmarks(self, world: World, record: Record, landed: Landed, twice: bool) -> Iterator[str]:
        if twice:
            yield "a record lands twice"
        if isinstance(record, LeaseFenced):
            yield "lease fenced" if landed.is_effective else "fence refused"
        if isinstance(record, Renewed) and landed.is_effective:
            lease = world.log.view.lease(record.epochs[0])
            if lease is not None and not world.log.is_valid(lease):
                yield "late renewal after expiry"
        if isinstance(record, Taken) and any(world.log.view.spots[number].losses for number in landed.covered):
            yield "grant after a fence"

    def _steps(self, world: World, index: int, worker: Worker) -> Iterator[Move[World]]:
        has_room, name = len(world.flying) < self._flying_max, worker.name
        match worker.step:
            case Step.INITIALISE:
                ready = Step.COMMIT if worker.hand else Step.ASK
                fenced = _initialised(world, worker.id)
                after = _placed(fenced, index, worker._replace(step=ready, is_live=True))
                yield Move(f"{name} initialises {worker.id}", after)
            case Step.ASK if worker.asks and has_room:
                yield self._asking(world, index, worker)
            case Step.READ if worker.answer is not None:
                after = _placed(world, index, self._answered(world, worker, worker.answer))
                yield Move(f"{name} reads its answer", after)
            case Step.COMMIT:
                yield self._commit(world, index, worker)
                if worker.renewals_left and has_room:
                    renewing = worker._replace(renewals_left=worker.renewals_left - 1)
                    renewed = Renewed(name, (worker.epoch,))
                    yield Move(f"{name} renews", _sent(_placed(world, index, renewing), index, renewed))
            case Step.FENCE:
                yield self._fence(world, index, worker)
            case Step.TELL if has_room:
                first, *rest = worker.to_fence
                told = worker._replace(step=Step.FENCE if rest else Step.ASK, to_fence=tuple(rest))
                yield Move(f"{name} tells", _sent(_placed(world, index, told), index, LeaseFenced(first)))
            case _:
                return

    def _asking(self, world: World, index: int, worker: Worker) -> Move[World]:
        first, *rest = worker.asks
        asked = worker._replace(step=Step.READ, asks=tuple(rest), answer=None)
        if self._shortcut is Shortcut.COMMITS_BEFORE_THE_READ_BACK:
            asked = asked._replace(step=Step.COMMIT, hand=tuple(range(*first)), epoch=world.log.offset)
        taken = Taken(worker.name, 0, (first,), LEASE_MS, worker.id)
        return Move(f"{worker.name} asks for {first}", _sent(_placed(world, index, asked), index, taken))

    def _answered(self, world: World, worker: Worker, answer: Landed) -> Worker:
        """Granted: to work. Refused: what has expired, as far as was read, and names a producer, is to be fenced."""
        worker = worker._replace(answer=None)
        if answer.is_effective:
            is_late = self._shortcut is Shortcut.ANNOUNCES_BEFORE_INITIALISING and not worker.is_live
            step = Step.INITIALISE if is_late else Step.COMMIT
            return worker._replace(step=step, epoch=answer.offset, hand=answer.covered)
        view = world.log.view
        expired = [epoch for epoch, lease in view.leases if not world.log.is_valid(lease) and lease.producer]
        return worker._replace(step=Step.FENCE if expired else Step.ASK, to_fence=tuple(expired))

    def _fence(self, world: World, index: int, worker: Worker) -> Move[World]:
        lease = world.log.view.lease(worker.to_fence[0])
        if lease is None or lease.producer is None:
            rest = worker.to_fence[1:]
            gone = worker._replace(step=Step.FENCE if rest else Step.ASK, to_fence=rest)
            return Move(f"{worker.name} sees that it is over", _placed(world, index, gone))
        is_hasty = self._shortcut is Shortcut.SAYS_FENCED_WITHOUT_FENCING
        is_hasty |= self._shortcut is Shortcut.FENCES_ONLY_THE_LAST and len(worker.to_fence) > 1
        fenced = world if is_hasty else _initialised(world, lease.producer)
        # Its own id may be among those that are to be fenced: then it goes on under a fresh one.
        told = fenced.workers[index]._replace(step=Step.TELL)
        return Move(f"{worker.name} fences {lease.producer}", _placed(fenced, index, told))

    def _commit(self, world: World, index: int, worker: Worker) -> Move[World]:
        name = worker.name
        idle = worker._replace(step=Step.ASK, epoch=-1, hand=())
        if not worker.is_live:
            return Move(f"{name} is refused a commit", _placed(world, index, self._fenced(worker)), None, _REFUSED)
        ranges = tuple((number, number + 1) for number in worker.hand)
        lease = world.log.view.lease(worker.epoch)
        is_expired = lease is not None and not world.log.is_valid(lease)
        _, log = world.log.appended(Acked(worker.epoch, ranges))
        effects = tuple(count + (number in worker.hand) for number, count in enumerate(world.effects))
        after = _placed(world._replace(log=log, effects=effects), index, idle)
        return Move(f"{name} commits {list(worker.hand)}", after, None, _LATE if is_expired else _IN_TIME)

    def _fenced(self, worker: Worker) -> Worker:
        """What a worker does that learns that it was fenced: its leases are not its own any more."""
        if self._shortcut is Shortcut.INITIALISES_ITS_OWN_ID_AGAIN:
            return worker._replace(step=Step.INITIALISE)
        fresh = worker._replace(step=Step.INITIALISE, life=worker.life + 1)
        if self._shortcut is Shortcut.ACTS_UNDER_A_NEW_ID_ON_AN_OLD_LEASE:
            return fresh
        return fresh._replace(epoch=-1, hand=())

    def _key(self, world: World) -> Hashable:
        named = [epoch for _, record in world.flying for epoch in epochs_named(record)]
        rank = ranked(
            world.log.epochs(),
            named,
            (worker.epoch for worker in world.workers),
            (epoch for worker in world.workers for epoch in worker.to_fence),
            (worker.answer.offset for worker in world.workers if worker.answer is not None),
        )
        workers = tuple(
            worker._replace(
                epoch=rank(worker.epoch),
                to_fence=tuple(map(rank, worker.to_fence)),
                answer=worker.answer and worker.answer._replace(offset=rank(worker.answer.offset)),
            )
            for worker in world.workers
        )
        flying = tuple(sorted((sender, repr(record_key(record, rank))) for sender, record in world.flying))
        return world.log.key(rank), workers, flying, world.doubles_left, world.expiries_left, world.effects


_REFUSED = ("commit refused to a fenced producer",)
_LATE = ("commit after expiry, before the fence",)
_IN_TIME = ("commit",)


def _initialised(world: World, name: str) -> World:
    workers = (worker._replace(is_live=False) if worker.id == name else worker for worker in world.workers)
    return world._replace(workers=tuple(workers))


def _sent(world: World, sender: int, record: Record) -> World:
    return world._replace(flying=(*world.flying, (sender, record)))


def _placed(world: World, index: int, worker: Worker) -> World:
    return world._replace(workers=(*world.workers[:index], worker, *world.workers[index + 1 :]))
