"""Two workers and one lease of the example machine: who may act, and what counts; with bugs that can be planted.

python -m penstock.testing.simulate penstock.testing.counter_scenarios:counter --enumerate 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import PenstockError
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
from penstock.ledger.snapshot import Keeper, Snapshots
from penstock.ledger.tail import ReadBack, Tail, Ticket
from penstock.testing.choices import Faults
from penstock.testing.simulation import Host, Scenario, Simulation, Violated, judged

LEDGER = "counter"
LEASE_MS = 300
NAME = "penstock.testing.counter_scenarios"


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
        self.replay(simulation)
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, CounterWorker)]
        self._one_believer(workers)
        for worker in workers:
            self.same_state(worker.tail)
            self._exclusive_total(worker)

    def replay(self, simulation: Simulation) -> None:
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

    def same_state(self, tail: Tail[Counter]) -> None:
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
    def build(simulation: Simulation, judge: CounterJudge) -> None:
        create_topics(simulation)
        for number, letter in enumerate("ab"):
            simulation.spawn(letter, lambda host: built(host, machine, worker), after_ms=number)

    return judged(
        f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        lambda: CounterJudge(machine, is_exclusive),
        build,
        faults=faults,
        until_ms=faults.until_ms + 10 * LEASE_MS,
    )


def create_topics(simulation: Simulation) -> None:
    simulation.broker.create(LEDGER, 1)
    simulation.broker.create(f"{LEDGER}.snapshots", 1)


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """The pieces that take part in snapshots; a bug replaces one of them."""

    snapshots: type[Snapshots] = Snapshots
    keeper: type[Keeper] = Keeper
    tail: type[Tail[Counter]] = Tail


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
