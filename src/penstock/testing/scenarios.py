"""Scenarios on the example machine, each with bugs that can be planted to show that the simulator finds them.

`counter`    two workers and one lease: who may act, and what counts
`snapshots`  the same workers writing snapshots and cutting the log, while visitors open it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.crash import crash_point
from penstock.errors import PenstockError
from penstock.ledger import tail as tail_module
from penstock.ledger.codec import Record
from penstock.ledger.counter import (
    PARTITION,
    Counter,
    CounterAdded,
    CounterRenewed,
    CounterTaken,
    CounterWorker,
    TransactionalCounterWorker,
)
from penstock.ledger.machine import ACCEPTED, Fold, Verdict
from penstock.ledger.snapshot import Keeper, PartKey, Shelf, Snapshots, Whole
from penstock.ledger.tail import ReadBack, Tail, Ticket
from penstock.testing.simulate import Faults, Host, Scenario, Simulation, Violated

LEDGER = "counter"
LEASE_MS = 300
NAME = "penstock.testing.scenarios"


# What must hold


@dataclass(slots=True)
class CounterJudge:
    """Knows the whole log, also what was cut, and what each worker believes."""

    machine: Callable[[], Counter] = Counter
    is_exclusive: bool = True
    """Whether two believers at once are a fault: not promised when a broker's clock steps."""
    hashes: list[str] = field(default_factory=list)
    owners: dict[int, str | None] = field(default_factory=dict)
    _fold: Fold[Counter] | None = None

    def judge(self, simulation: Simulation) -> None:
        self._replay(simulation)
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, CounterWorker)]
        self._one_believer(workers)
        for worker in workers:
            self._same_state(worker.tail)
            self._exclusive_total(worker)

    def _replay(self, simulation: Simulation) -> None:
        """The reference: one fold over everything that was ever appended."""
        fold = self._fold = self._fold or Fold(self.machine())
        for entry in simulation.broker.partitions(LEDGER)[PARTITION].history(fold.next_offset):
            owner_before, epoch_before = fold.machine.holder, fold.machine.epoch
            fold.feed(entry.offset, entry.time_ms, entry.value)
            self.hashes.extend([fold.hash()] * (entry.offset + 1 - len(self.hashes)))
            if fold.machine.holder not in (None, owner_before) and fold.machine.epoch <= epoch_before:
                raise Violated(f"{fold.machine.holder} holds the lease from {owner_before} without a larger epoch")
            if owner_before not in (None, fold.machine.holder) and fold.machine.holder is not None:
                simulation.reach("lease taken over after expiry")

    def _one_believer(self, workers: list[CounterWorker]) -> None:
        believers = [worker.name for worker in workers if worker.is_holding()]
        if self.is_exclusive and len(believers) > 1:
            raise Violated(f"{' and '.join(believers)} both act as the holder")

    def _same_state(self, tail: Tail[Counter]) -> None:
        fold = tail.fold(PARTITION)
        if 0 < fold.next_offset <= len(self.hashes) and fold.hash() != self.hashes[fold.next_offset - 1]:
            raise Violated(f"{tail.instance} has another state at offset {fold.next_offset - 1} than a full replay")

    def _exclusive_total(self, worker: CounterWorker) -> None:
        """While a worker's lease is the current one, nobody else moves the counter."""
        tenure, machine = worker.tenure, worker.tail.fold(PARTITION).machine
        if tenure is None or machine.epoch != tenure.epoch:
            return
        if machine.total != tenure.total_at_grant + tenure.added:
            raise Violated(
                f"{worker.name} added {tenure.added} to {tenure.total_at_grant}, but the counter is at {machine.total}"
            )

    def conclude(self, simulation: Simulation) -> None:
        """Faults have stopped long ago: somebody must be at work again (unless the log clock was frozen by a step)."""
        if not self.is_exclusive:
            return
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, CounterWorker)]
        if not any(worker.is_holding() for worker in workers):
            raise Violated("nobody holds the lease at the end")
        if self._fold is None or self._fold.machine.total == 0:
            raise Violated("nothing was counted")


# The counter, and its planted bugs


class _RenewalGrants(Counter):
    """Bug: a renewal revives a lease that passed on."""

    def _on_renewed(self, record: CounterRenewed, offset: int, clock_ms: int) -> Verdict:
        if record.epoch != self.epoch and self._owners.get(record.epoch):
            self.holder, self.renewed_ms = self._owners[record.epoch], clock_ms
            return ACCEPTED
        return super()._on_renewed(record, offset, clock_ms)

    def _on_taken(self, record: CounterTaken, offset: int, clock_ms: int) -> Verdict:
        verdict = super()._on_taken(record, offset, clock_ms)
        if verdict.is_accepted:
            self._owners[offset] = record.worker
        return verdict

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, str] = {}


class _StaleAddCounts(Counter):
    """Bug: whoever adds is not asked for its epoch."""

    def _on_added(self, record: CounterAdded, offset: int, clock_ms: int) -> Verdict:
        self.total += 1
        if self._is_current(record.epoch):
            self.added_in_epoch += 1
        return ACCEPTED


class _DoubleAddCounts(Counter):
    """Bug: a doubled append is counted twice."""

    def _on_added(self, record: CounterAdded, offset: int, clock_ms: int) -> Verdict:
        if record.number < self.added_in_epoch and self._is_current(record.epoch):
            self.total += 1
            return Verdict(ACCEPTED.kind, "again")
        return super()._on_added(record, offset, clock_ms)


class _ActsBeforeReadBack(CounterWorker):
    """Bug: an append that was handed over counts as a grant."""

    def _asked_once(self, ticket: Ticket | None, record: Record) -> Ticket:
        asked = super()._asked_once(ticket, record)
        if isinstance(record, CounterTaken) and asked is not ticket:
            self._begin(asked, -2, 0)
        return asked


class _LeaseFromReadBack(CounterWorker):
    """Bug: the local lease counts from when the answer was read, not from before the question was sent."""

    def _begin(self, ticket: Ticket, epoch: int, total: int) -> None:
        super()._begin(ticket, epoch, total)
        if self.tenure is not None:
            self.tenure.lease.renewed(sent_ms=self._now_ms())

    def _on_renewed(self, read_back: ReadBack) -> None:
        super()._on_renewed(read_back)
        if self.tenure is not None and read_back.ticket is not None and read_back.verdict.is_accepted:
            self.tenure.lease.renewed(sent_ms=self._now_ms())


class _TakesUnknownForDone(TransactionalCounterWorker):
    """Bug: a commit without an answer is taken for a commit."""

    def _settle(self, doubt: PenstockError) -> None:
        super()._settle(doubt)
        if self.tenure is not None:
            self.tenure.added += 1


COUNTER_BUGS: dict[str, tuple[type[Counter], type[CounterWorker]]] = {
    "": (Counter, CounterWorker),
    "acts_before_read_back": (Counter, _ActsBeforeReadBack),
    "lease_from_read_back": (Counter, _LeaseFromReadBack),
    "renewal_grants": (_RenewalGrants, CounterWorker),
    "stale_add_counts": (_StaleAddCounts, CounterWorker),
    "double_add_counts": (_DoubleAddCounts, CounterWorker),
}

TRANSACTION_BUGS: dict[str, tuple[type[Counter], type[CounterWorker]]] = {
    "": (Counter, TransactionalCounterWorker),
    "takes_unknown_for_done": (Counter, _TakesUnknownForDone),
}

COUNTER_FAULTS = Faults(
    pause_ms=LEASE_MS * 5 // 6,
    delay_ms=LEASE_MS * 5 // 4,
    duplicates=True,
    lost_acks=True,
    drops=True,
    slow_reads=True,
    until_ms=1_000,
)


def counter(bug: str = "") -> Scenario:
    machine, worker = COUNTER_BUGS[bug]
    return _scenario("counter", bug, machine, worker, COUNTER_FAULTS, is_exclusive=True)


def counter_with_clock_steps(bug: str = "") -> Scenario:
    """A broker's clock may step: redelivery may come early then, but tokens and totals stay right."""
    machine, worker = COUNTER_BUGS[bug]
    faults = Faults(pause_ms=2 * LEASE_MS, delay_ms=LEASE_MS, clock_step_ms=10 * LEASE_MS, until_ms=1_000)
    return _scenario("counter_with_clock_steps", bug, machine, worker, faults, is_exclusive=False)


def counter_in_transactions(bug: str = "") -> Scenario:
    """Additions go through transactions that are fenced, or end without anybody knowing how."""
    machine, worker = TRANSACTION_BUGS[bug]
    faults = Faults(
        pause_ms=2 * LEASE_MS,
        lost_acks=True,
        drops=True,
        fences=True,
        transaction_timeout_ms=2 * LEASE_MS,
        until_ms=800,
    )
    return _scenario("counter_in_transactions", bug, machine, worker, faults, is_exclusive=True)


def _scenario(
    name: str, bug: str, machine: type[Counter], worker: type[CounterWorker], faults: Faults, *, is_exclusive: bool
) -> Scenario:
    judges: dict[int, CounterJudge] = {}

    def judge_of(simulation: Simulation) -> CounterJudge:
        return judges.setdefault(id(simulation), CounterJudge(machine, is_exclusive))

    def build(simulation: Simulation) -> None:
        judges.clear()
        simulation.broker.create(LEDGER, 1)
        simulation.broker.create(f"{LEDGER}.snapshots", 1)
        for number, letter in enumerate("ab"):
            simulation.spawn(letter, lambda host: built(host, machine, worker), after_ms=number)

    return Scenario(
        name=f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        build=build,
        judge=lambda simulation: judge_of(simulation).judge(simulation),
        conclude=lambda simulation: judge_of(simulation).conclude(simulation),
        faults=faults,
        until_ms=faults.until_ms + 10 * LEASE_MS,
    )


def built(
    host: Host,
    machine: type[Counter] = Counter,
    worker: type[CounterWorker] = CounterWorker,
    *,
    snapshot_every: int = 1_000_000,
    parts: SnapshotParts | None = None,
) -> CounterWorker:
    tail = opened_tail(host, machine, snapshot_every=snapshot_every, parts=parts or SnapshotParts())
    return worker(tail, name=host.instance, lease_ms=LEASE_MS, monotonic_ms=host.now_ms)


def opened_tail(host: Host, machine: type[Counter], *, snapshot_every: int, parts: SnapshotParts) -> Tail[Counter]:
    log = host.log(LEDGER)
    snapshots = parts.snapshots(host.log(f"{LEDGER}.snapshots"))
    tail = parts.tail(
        log,
        snapshots,
        machine=machine,
        instance=host.instance,
        monotonic_ms=host.now_ms,
        fresh_ms=LEASE_MS // 2,
        snapshot_every=snapshot_every,
    )
    tail._keeper = parts.keeper(log, snapshots, writer=host.instance, every=snapshot_every)
    tail.follow([PARTITION])
    return tail


# Snapshots, and their planted bugs


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """The pieces that take part; a bug replaces one of them."""

    snapshots: type[Snapshots] = Snapshots
    keeper: type[Keeper] = Keeper
    tail: type[Tail[Counter]] = Tail


class _OneKey(Snapshots):
    """Bug: all snapshots of a partition share their keys, so a late writer erases the newer one."""

    def scan(self, partition: int) -> Shelf:
        return _OneKeyShelf(partition, super().scan(partition))


class _OneKeyShelf(Shelf):
    def __init__(self, partition: int, full: Shelf) -> None:
        super().__init__(partition)
        for key, part in full._parts.items():  # in the order of the log
            self._parts = {other: kept for other, kept in self._parts.items() if other.offset == key.offset}
            self._parts[key] = part

    def keys_below(self, offset: int) -> list[PartKey]:
        return []


class _CutsUnread(Keeper):
    """Bug: what was sent counts as there; the cut does not wait for the read-back."""

    def cut(self, partition: int) -> None:
        own = sorted(self._own_hashes.get(partition, {}))
        if len(own) >= 2:
            self._log.cut(partition, own[-2] + 1)


class _CutsBehindNewest(Keeper):
    """What goes with one key: a single whole snapshot has to be enough to cut."""

    def cut(self, partition: int) -> None:
        whole = self._snapshots.scan(partition).newest()
        own = sorted(self._own_hashes.get(partition, {}))
        if whole is not None and len(own) >= 2 and own[-2] <= whole.offset:
            crash_point("bug.cut_decided")
            self._log.cut(partition, own[-2] + 1)


class _EmptyWhenCut(Tail[Counter]):
    """Bug: a log that was cut beyond every snapshot counts as an empty ledger."""

    def _base(self, partition: int, fold: Fold[Counter]) -> Whole | None:
        whole = self._snapshots.scan(partition).newest()
        start = self.log.bounds([partition])[partition].start
        if start > tail_module._next_offset(whole):
            fold.next_offset = start
            return None
        return whole


class _LooksOnce(Tail[Counter]):
    """Bug: a reader that races a cut does not look at the snapshots again."""

    def _base(self, partition: int, fold: Fold[Counter]) -> Whole | None:
        first = self._snapshots.scan(partition)
        kept, self._snapshots.scan = self._snapshots.scan, lambda partition: first  # type: ignore[method-assign]
        crash_point("bug.scanned")
        try:
            return super()._base(partition, fold)
        finally:
            self._snapshots.scan = kept  # type: ignore[method-assign]


SNAPSHOT_BUGS: dict[str, SnapshotParts] = {
    "": SnapshotParts(),
    "one_key": SnapshotParts(snapshots=_OneKey, keeper=_CutsBehindNewest),
    "cuts_unread": SnapshotParts(keeper=_CutsUnread),
    "empty_when_cut": SnapshotParts(tail=_EmptyWhenCut, snapshots=_OneKey, keeper=_CutsBehindNewest),
    "looks_once": SnapshotParts(tail=_LooksOnce),
}


@dataclass(slots=True)
class Visitor:
    """Opens the ledger again and again, as a process that has just started does."""

    host: Host
    parts: SnapshotParts
    judge: CounterJudge
    visits: int = 0

    def step(self) -> int:
        tail = opened_tail(self.host, Counter, snapshot_every=1_000_000, parts=self.parts)
        for _ in range(100):
            tail.step(0)
            if tail.fold(PARTITION).halt is not None or tail.is_caught_up(PARTITION):
                break
        self._look(tail)
        self.visits += 1
        return LEASE_MS // 2

    def _look(self, tail: Tail[Counter]) -> None:
        simulation, fold = self.host.simulation, tail.fold(PARTITION)
        if fold.halt is not None:
            raise Violated(f"a reader cannot open the ledger: {fold.halt.reason}")
        self.judge._replay(simulation)
        self.judge._same_state(tail)
        if simulation.broker.partitions(LEDGER)[PARTITION].start:
            simulation.reach("opened a ledger that was cut")


def snapshots(bug: str = "") -> Scenario:
    parts = SNAPSHOT_BUGS[bug]
    judges: dict[int, CounterJudge] = {}

    def judge_of(simulation: Simulation) -> CounterJudge:
        return judges.setdefault(id(simulation), CounterJudge())

    def build(simulation: Simulation) -> None:
        judges.clear()
        simulation.broker.create(LEDGER, 1)
        simulation.broker.create(f"{LEDGER}.snapshots", 1)
        for number, letter in enumerate("ab"):
            simulation.spawn(letter, lambda host: built(host, snapshot_every=5, parts=parts), after_ms=number)
        judge = judge_of(simulation)
        simulation.spawn("visitor", lambda host: Visitor(host, parts, judge), after_ms=LEASE_MS)

    def conclude(simulation: Simulation) -> None:
        judge_of(simulation).conclude(simulation)
        if simulation.broker.partitions(LEDGER)[PARTITION].start == 0:
            raise Violated("the log was never cut")

    return Scenario(
        name=f"{NAME}:snapshots" + (f"({bug})" if bug else ""),
        build=build,
        judge=lambda simulation: judge_of(simulation).judge(simulation),
        conclude=conclude,
        faults=Faults(pause_ms=2 * LEASE_MS, delay_ms=LEASE_MS, drops=True, until_ms=900),
        until_ms=2_100,
    )
