"""Looking at queues, and nothing else: no record is written, nothing is taken.

*Now*: the log clock of a quiet partition stands still, and with it every lease and delay. So states are shown at the
time of this machine, or at the log clock where that is further. What the log decides does not depend on it.

Counts are of offsets: the markers of transactions count until somebody passes them. A delay that was given at the send
is known to who reads the message only: `delays.py` does that, for as many as is reasonable.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from penstock.claims.lag import next_times
from penstock.errors import GenesisMismatch, NotFound, PenstockError, UsageError
from penstock.kafka.topics import Admin, TopicInfo
from penstock.ledger.history import Patience
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.machine import Fold
from penstock.ledger.tail import Tail, Witness, monotonic_ms
from penstock.ledger.topics import SNAPSHOTS_SUFFIX
from penstock.queue.cells import Cell, Status
from penstock.queue.leases import Pause
from penstock.queue.names import SUFFIX, ledger_topic
from penstock.queue.ranges import OFFSET_MAX, Ranges, joined
from penstock.queue.records import QueueFounded
from penstock.queue.spans import Run
from penstock.queue.state import QueueMachine
from penstock.settings import Settings
from penstock.values import Bounds, TopicPartition

_STEP_MS = 200

Folds = Mapping[int, Fold[QueueMachine]]


class Shown(Enum):
    """The state of a message as it is shown, in the words of commands and metrics."""

    READY = "ready"
    """Whoever asks for it next gets it: new, due again, or in a lease that has run out."""
    LEASED = "leased"
    WAITING = "waiting"
    """For its time, after a failure."""
    TO_COPY = "to_copy"
    """Given up; the copy in the dead letters is still to be made."""
    FINISHED = "finished"


class Named(NamedTuple):
    """A queue and an application that consumes it."""

    topic: str
    group: str
    ledger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    partition: int
    position: int
    start: int
    """The first offset that is still there."""
    end: int
    counts: Mapping[Shown, int]
    ready: Ranges
    """Those that the ledger has as ready."""
    dead: int
    first: int | None
    """The first offset that is not finished."""
    workers: frozenset[str]
    """Who holds valid leases."""

    @property
    def lag_records(self) -> int:
        return max(0, self.end - max(self.position, self.start))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeen:
    named: Named
    queues: tuple[str, ...] = ()
    """Patterns of the names of the queues that share the topic."""
    partitions: tuple[PartitionSeen, ...] = ()
    oldest_ms: int | None = None
    """When the oldest message that is not finished was written, where that could be read at once."""
    unread: int = 0
    """How many that count as ready nobody has looked at: some of them may wait for a time of their own."""
    pauses: Mapping[str, Pause]
    halted: Mapping[int, str]
    """Partitions whose state is known only up to a certain record, with the reason."""
    problem: PenstockError | None = None
    """Why nothing is known."""

    def count(self, state: Shown) -> int:
        return sum(seen.counts.get(state, 0) for seen in self.partitions)

    @property
    def dead(self) -> int:
        return sum(seen.dead for seen in self.partitions)

    @property
    def lag_records(self) -> int:
        return sum(seen.lag_records for seen in self.partitions)

    @property
    def workers(self) -> list[str]:
        return sorted(frozenset().union(*(seen.workers for seen in self.partitions)))


# What a fold tells


def now_in(fold: Fold[QueueMachine], wall_ms: int) -> int:
    return max(wall_ms, fold.clock_ms)


def shown_state(machine: QueueMachine, cell: Cell, now_ms: int) -> Shown:
    if machine.may_be_granted(cell, now_ms):
        return Shown.READY
    return _SHOWN[cell.status]


_SHOWN = {
    Status.LEASED: Shown.LEASED,
    Status.WAITING: Shown.WAITING,
    Status.BURIED: Shown.TO_COPY,
    Status.FINISHED: Shown.FINISHED,
}


def runs_within(machine: QueueMachine, bounds: Bounds) -> list[Run[Cell]]:
    """What is known of the offsets that can still be read."""
    start = max(machine.position, bounds.start)
    return machine.cells.runs(start, bounds.stable_end) if start < bounds.stable_end else []


def ranges_in(machine: QueueMachine, bounds: Bounds, state: Shown, now_ms: int) -> Ranges:
    """The offsets that are in this state."""
    runs = runs_within(machine, bounds)
    return joined((run.start, run.end) for run in runs if shown_state(machine, run.value, now_ms) is state)


def dead_count(machine: QueueMachine) -> int:
    return sum(run.end - run.start for run in machine.dead.runs(0, OFFSET_MAX) if run.value)


def partition_seen(partition: int, fold: Fold[QueueMachine], bounds: Bounds, wall_ms: int) -> PartitionSeen:
    machine, now_ms = fold.machine, now_in(fold, wall_ms)
    runs = runs_within(machine, bounds)
    counts = dict.fromkeys(Shown, 0)
    for run in runs:
        counts[shown_state(machine, run.value, now_ms)] += run.end - run.start
    return PartitionSeen(
        partition=partition,
        position=machine.position,
        start=bounds.start,
        end=bounds.stable_end,
        counts=counts,
        ready=joined((run.start, run.end) for run in runs if machine.may_be_granted(run.value, now_ms)),
        dead=dead_count(machine),
        first=next((run.start for run in runs if run.value.status is not Status.FINISHED), None),
        workers=frozenset(lease.worker for lease in machine.leases.values() if lease.is_valid(now_ms)),
    )


# Which queues there are


def candidates(names: Iterable[str], *, prefix: str, group: str | None = None) -> dict[str, list[Named]]:
    """What each ledger may be that of, by its name: names have dots too, so there may be several answers."""
    there = frozenset(names)
    found: dict[str, list[Named]] = {}
    for ledger in sorted(there):
        if ledger.startswith(prefix) and ledger.endswith(SUFFIX) and ledger + SNAPSHOTS_SUFFIX in there:
            stem = ledger[len(prefix) : -len(SUFFIX)]
            all_ways = [Named(stem[:at], stem[at + 1 :], ledger) for at, c in enumerate(stem) if c == "."]
            ways = [way for way in all_ways if way.topic and way.group and group in (None, way.group)]
            # Where the topic is gone, its name is the longest that it can have been.
            if ways:
                found[ledger] = [way for way in ways if way.topic in there] or ways[-1:]
    return found


def founded_for(folds: Folds) -> frozenset[str]:
    """The ids of the topics that the ledger's partitions were founded for; of one that is well, one."""
    return frozenset(fold.genesis.topic_id for fold in folds.values() if isinstance(fold.genesis, QueueFounded))


def check_founded(named: Named, folds: Folds, topic_id: str) -> None:
    """Raises Refused if the ledger is that of another topic: what it tells of offsets means nothing then."""
    founded = founded_for(folds) - {""}
    if founded and topic_id and topic_id not in founded:
        raise GenesisMismatch(
            f"{named.ledger} is that of another topic than {named.topic}, or of one that was deleted and made anew",
            next_step=f"delete {named.ledger} and its snapshots, if its messages are gone",
        )


def chosen(ways: list[Named], folds: Folds, topics: Mapping[str, TopicInfo]) -> Named | None:
    """The one whose topic the ledger was founded for; none if it is no queue's ledger at all."""
    founded = founded_for(folds)
    right = [way for way in ways if way.topic in topics and topics[way.topic].topic_id in founded]
    if right or founded:
        return (right or ways)[0]
    # Nobody has begun to work on it.
    return next((way for way in ways if way.topic in topics), None)


def found_queue(settings: Settings, topic: str, group: str | None) -> Named:
    """The queue of that topic, of that group or of the only one that it has.

    Raises NotFound, and UsageError if it has several and none was named.
    """
    with Admin(settings.kafka) as admin:
        names = admin.names()
    if group is not None:
        ledger = ledger_topic(settings, topic=topic, group=group)
        if ledger in names:
            return Named(topic, group, ledger)
        raise _not_found(topic, group, is_there=topic in names)
    ways = [way for found in candidates(names, prefix=settings.topic_prefix).values() for way in found]
    right = [way for way in ways if way.topic == topic]
    if not right:
        raise _not_found(topic, None, is_there=topic in names)
    if len(right) > 1:
        groups = ", ".join(way.group for way in right)
        raise UsageError(f"{topic} is consumed by {groups}", next_step="choose one of them with --group")
    return right[0]


def _not_found(topic: str, group: str | None, *, is_there: bool) -> NotFound:
    next_step = "`penstock queues` lists the queues and their groups"
    if not is_there:
        return NotFound(f"there is no queue {topic}", next_step=next_step)
    return NotFound(f"queue {topic} is consumed by no group{'' if group is None else ' ' + group}", next_step=next_step)


# Reading


def read_ledger(settings: Settings, ledger: str, *, witness: Witness | None = None) -> Folds:
    """The folds of all partitions, read to an end that was asked for after this was called.

    Raises NotFound without the ledger's topics, Refused with wrong settings of theirs, BrokerUnavailable when nothing
    moves for the request time-out.
    """
    log, snapshots = open_ledger(settings.kafka, ledger)
    tail = Tail(
        log,
        snapshots,
        machine=QueueMachine,
        instance=f"look-{uuid.uuid4().hex}",
        monotonic_ms=monotonic_ms,
        fresh_ms=1_000,
        snapshot_every=2**62,
        witness=witness,
    )
    try:
        partitions = range(log.partition_count())
        tail.follow(partitions)
        patience = Patience(settings.kafka.request_timeout)
        while not all(tail.is_caught_up(p) or tail.fold(p).halt is not None for p in partitions):
            tail.step(_STEP_MS)
            patience.check(tuple(tail.fold(p).next_offset for p in partitions), ledger)
        return {partition: tail.fold(partition) for partition in partitions}
    finally:
        tail.close()


def topic_bounds(admin: Admin, topic: str, partitions: int) -> dict[int, Bounds]:
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    return {place.partition: bounds for place, bounds in admin.bounds(places).items()}


def queues_seen(settings: Settings, wall_ms: int, *, group: str | None = None) -> list[QueueSeen]:
    """Every queue that a ledger tells of, or those of one group. One that cannot be read says so, and no more."""
    with Admin(settings.kafka) as admin:
        found = candidates(admin.names(), prefix=settings.topic_prefix, group=group)
        topics = admin.describe({way.topic for ways in found.values() for way in ways})
        seen = [one for ways in found.values() if (one := _queue_seen(settings, admin, ways, topics, wall_ms))]
    return sorted(_with_ages(settings, seen), key=lambda one: one.named)


def _queue_seen(
    settings: Settings, admin: Admin, ways: list[Named], topics: Mapping[str, TopicInfo], wall_ms: int
) -> QueueSeen | None:
    try:
        folds = read_ledger(settings, ways[0].ledger)
        named = chosen(ways, folds, topics)
        if named is None:
            return None
        if named.topic not in topics:
            raise NotFound(
                f"topic {named.topic} is gone", next_step=f"delete {named.ledger}, if it is not to come back"
            )
        check_founded(named, folds, topics[named.topic].topic_id)
        bounds = topic_bounds(admin, named.topic, topics[named.topic].partitions)
    except PenstockError as problem:
        return QueueSeen(named=ways[0], pauses={}, halted={}, problem=problem)
    # A partition that the topic has and the ledger has not: nobody has worked on it yet.
    known = {partition: folds.get(partition) or Fold(QueueMachine()) for partition in bounds}
    pauses = {
        queue: pause
        for fold in folds.values()
        for queue in fold.machine.pauses
        if (pause := fold.machine.pause_of(queue, now_in(fold, wall_ms))) is not None
    }
    return QueueSeen(
        named=named,
        queues=next((fold.machine.queues for fold in folds.values() if fold.machine.queues), ()),
        partitions=tuple(partition_seen(p, known[p], bounds[p], wall_ms) for p in sorted(bounds)),
        pauses=pauses,
        halted={partition: fold.halt.reason for partition, fold in folds.items() if fold.halt is not None},
    )


def _with_ages(settings: Settings, queues: list[QueueSeen]) -> list[QueueSeen]:
    places = {one.named: list(_places(one)) for one in queues}
    times = next_times(settings.kafka, {place for found in places.values() for place in found})
    return [
        replace(one, oldest_ms=min((times[place] for place in places[one.named] if place in times), default=None))
        for one in queues
    ]


def _places(queue: QueueSeen) -> Iterable[tuple[TopicPartition, int]]:
    for seen in queue.partitions:
        if seen.first is not None:
            yield TopicPartition(queue.named.topic, seen.partition), seen.first
