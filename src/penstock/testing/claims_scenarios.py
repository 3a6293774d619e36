"""Members sharing slots, under everything that can go wrong, with bugs that can be planted.

python -m penstock.testing.simulate penstock.testing.claims_scenarios:members --enumerate 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.claims.member import Listener, Member, Tenure
from penstock.claims.placement import partition_of
from penstock.claims.records import Beat, ClaimsFounded, Slot
from penstock.claims.state import Claims, SlotState
from penstock.crash import crash_point
from penstock.ledger.clock import LocalLease
from penstock.ledger.machine import Fold
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.simulate import Faults, Host, Scenario, Simulation, Violated

TOPIC = "claims"
HB_MS = 300
PARTITIONS = 2
FOUNDED = ClaimsFounded(partitions=PARTITIONS, heartbeat_ms=HB_MS, window=100, delivery_limit=5)
SLOTS = tuple(Slot("g", "t", number) for number in range(4))
NAME = "penstock.testing.claims_scenarios"


class Worker:
    """Processes the offsets of the slots that its member holds, one at a time, and moves the position behind them."""

    def __init__(self, host: Host, member: Member, seen: dict[Slot, set[int]]) -> None:
        self.host, self.member, self._seen = host, member, seen

    def step(self) -> int:
        self.member.step(0)
        for tenure in list(self.member.held.values()):
            if self.member.is_good(tenure):
                self._process(tenure)
        return HB_MS // 10

    def _process(self, tenure: Tenure) -> None:
        offset = tenure.position or 0
        self._seen.setdefault(tenure.slot, set()).add(offset)
        crash_point("worker.processed")
        tenure.position = offset + 1


@dataclass(slots=True)
class Judge:
    """Knows the whole coordination log, what each member believes, and what was processed."""

    is_exclusive: bool = True
    seen: dict[Slot, set[int]] = field(default_factory=dict)
    _folds: dict[int, Fold[Claims]] = field(default_factory=dict)
    _hashes: dict[int, list[str]] = field(default_factory=dict)

    def judge(self, simulation: Simulation) -> None:
        for number in range(PARTITIONS):
            self._replay(simulation, number)
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, Worker)]
        self._one_believer(workers)
        self._nothing_skipped()
        for worker in workers:
            for number in range(PARTITIONS):
                self._same_state(worker.member.tail, number)

    def _replay(self, simulation: Simulation, number: int) -> None:
        fold = self._folds.setdefault(number, Fold(Claims()))
        hashes = self._hashes.setdefault(number, [])
        for entry in simulation.broker.partitions(TOPIC)[number].history(fold.next_offset):
            before = {slot: (state.owner, state.epoch, state.position) for slot, state in fold.machine.slots.items()}
            fold.feed(entry.offset, entry.time_ms, entry.value)
            hashes.extend([fold.hash()] * (entry.offset + 1 - len(hashes)))
            for slot, (owner, epoch, position) in before.items():
                self._lawful(simulation, fold.machine, slot, owner, epoch, position)

    def _lawful(
        self,
        simulation: Simulation,
        machine: Claims,
        slot: Slot,
        owner: tuple[str, str] | None,
        epoch: int,
        position: int | None,
    ) -> None:
        state = machine.slots[slot]
        if state.owner not in (None, owner) and state.epoch <= epoch:
            raise Violated(f"{slot} passed from {owner} to {state.owner} without a larger epoch")
        if position is not None and (state.position is None or state.position < position):
            raise Violated(f"the position of {slot} went back from {position} to {state.position}")
        if state.owner is not None and owner is not None and state.owner != owner:
            simulation.reach("taken over after expiry")
        if state.owner is None and owner is not None:
            simulation.reach("released")

    def _one_believer(self, workers: list[Worker]) -> None:
        if not self.is_exclusive:
            return
        believers: dict[Slot, str] = {}
        for worker in workers:
            for tenure in worker.member.held.values():
                if not worker.member.is_good(tenure):
                    continue
                if tenure.slot in believers:
                    raise Violated(f"{believers[tenure.slot]} and {worker.host.instance} both act on {tenure.slot}")
                believers[tenure.slot] = worker.host.instance

    def _nothing_skipped(self) -> None:
        """At least once: below the position of the log everything was processed."""
        for fold in self._folds.values():
            for slot, state in fold.machine.slots.items():
                if state.position and len(self.seen.get(slot, ())) < state.position:
                    raise Violated(f"the position of {slot} is {state.position}, but not all below it was processed")

    def _same_state(self, tail: Tail[Claims], number: int) -> None:
        fold, hashes = tail.fold(number), self._hashes[number]
        if 0 < fold.next_offset <= len(hashes) and fold.hash() != hashes[fold.next_offset - 1]:
            raise Violated(f"{tail.instance} has another state at offset {fold.next_offset - 1} than a full replay")

    def conclude(self, simulation: Simulation) -> None:
        if not self.is_exclusive:
            return
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, Worker)]
        if not workers:
            return
        counts = {w.host.name: sum(w.member.is_good(t) for t in w.member.held.values()) for w in workers}
        if sum(counts.values()) != len(SLOTS):
            raise Violated(f"at the end {counts} are held of {len(SLOTS)} slots")
        if max(counts.values()) - min(counts.values()) > 1:
            raise Violated(f"at the end the shares are not fair: {counts}")


def built(host: Host, judge: Judge, member: type[Member], *, snapshot_every: int) -> Worker:
    log = host.log(TOPIC)
    tail = Tail(
        log,
        Snapshots(host.log(f"{TOPIC}.snapshots")),
        machine=Claims,
        instance=host.instance,
        monotonic_ms=host.now_ms,
        fresh_ms=HB_MS // 2,
        snapshot_every=snapshot_every,
    )
    made = member(
        tail,
        founded=FOUNDED,
        client=host.name,
        place=partition_of,
        monotonic_ms=host.now_ms,
        listener=Listener(),
        reclaim=True,
    )
    made.want(SLOTS)
    return Worker(host, made, judge.seen)


class _NoLocalLease(Member):
    """Bug: a member believes in its slots until the log says otherwise."""

    def is_good(self, tenure: Tenure) -> bool:
        return self.held.get(tenure.slot) is tenure and tenure.leaving is None


class _ActsOnAppend(Member):
    """Bug: a question that was handed over counts as a grant."""

    def _claim(self, slot: Slot, state: SlotState) -> None:
        super()._claim(slot, state)
        lease = LocalLease(lasts_ms=HB_MS)
        lease.renewed(sent_ms=self._now_ms())
        self.held[slot] = Tenure(slot, -1, lease, state.position, state.position)


class _WorksWhileLeaving(Member):
    """Bug: work goes on while the release is under way."""

    def is_good(self, tenure: Tenure) -> bool:
        return self.held.get(tenure.slot) is tenure and tenure.lease.is_good(self._now_ms())


class _TellsAhead(Member):
    """Bug: the position that is told is ahead of what was processed."""

    def _beats(self, number: int) -> tuple[Beat, ...]:
        return tuple(beat._replace(position=(beat.position or 0) + 1) for beat in super()._beats(number))


BUGS: dict[str, type[Member]] = {
    "": Member,
    "no_local_lease": _NoLocalLease,
    "acts_on_append": _ActsOnAppend,
    "works_while_leaving": _WorksWhileLeaving,
    "tells_ahead": _TellsAhead,
}


def members(bug: str = "") -> Scenario:
    """Three members and four slots."""
    faults = Faults(
        pause_ms=HB_MS * 3,
        delay_ms=HB_MS * 5 // 4,
        duplicates=True,
        lost_acks=True,
        drops=True,
        slow_reads=True,
        until_ms=1_200,
    )
    return _scenario("members", bug, faults, names="abc", is_exclusive=True, snapshot_every=10**6)


def pair(bug: str = "") -> Scenario:
    """Two members, with pauses and crashes only: small enough to enumerate."""
    faults = Faults(pause_ms=HB_MS * 3, until_ms=900)
    return _scenario("pair", bug, faults, names="ab", is_exclusive=True, snapshot_every=10**6)


def members_that_stay_dead(bug: str = "") -> Scenario:
    """Nobody is restarted: the living must take over all that the dead had."""
    faults = Faults(restart_ms=0, pause_ms=HB_MS * 3, until_ms=900)
    return _scenario("members_that_stay_dead", bug, faults, names="abc", is_exclusive=True, snapshot_every=10**6)


def members_with_clock_steps(bug: str = "") -> Scenario:
    faults = Faults(pause_ms=HB_MS * 3, clock_step_ms=10 * HB_MS, delay_ms=HB_MS, until_ms=1_200)
    return _scenario("members_with_clock_steps", bug, faults, names="abc", is_exclusive=False, snapshot_every=10**6)


def members_with_snapshots(bug: str = "") -> Scenario:
    """The coordination log is cut behind snapshots while members come and go."""
    faults = Faults(pause_ms=HB_MS * 3, delay_ms=HB_MS, drops=True, until_ms=1_200)
    return _scenario("members_with_snapshots", bug, faults, names="abc", is_exclusive=True, snapshot_every=12)


def _scenario(name: str, bug: str, faults: Faults, *, names: str, is_exclusive: bool, snapshot_every: int) -> Scenario:
    judges: dict[int, Judge] = {}

    def judge_of(simulation: Simulation) -> Judge:
        return judges.setdefault(id(simulation), Judge(is_exclusive))

    def build(simulation: Simulation) -> None:
        judges.clear()
        simulation.broker.create(TOPIC, PARTITIONS)
        simulation.broker.create(f"{TOPIC}.snapshots", PARTITIONS)
        judge = judge_of(simulation)
        make: Callable[[Host], Worker] = lambda host: built(host, judge, BUGS[bug], snapshot_every=snapshot_every)  # noqa: E731
        for number, letter in enumerate(names):
            simulation.spawn(letter, make, after_ms=number)

    return Scenario(
        name=f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        build=build,
        judge=lambda simulation: judge_of(simulation).judge(simulation),
        conclude=lambda simulation: judge_of(simulation).conclude(simulation),
        faults=faults,
        until_ms=faults.until_ms + 20 * HB_MS,
        rate=0.02,
    )
