"""Members with transactions taking one slot over from each other: real members, every effect exactly once.

Each step of a worker begins or ends a transaction, so that one is open most of the time. The judge counts committed
effects. The members' own clock does not guard them here: whoever wakes goes on with what it had begun.

python -m penstock.testing.simulate penstock.testing.claims_takeovers:takeovers --enumerate 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.claims.fencing import Fencing, Initialisation
from penstock.claims.member import Listener, Member, Tenure
from penstock.claims.placement import partition_of
from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.crash import crash_point
from penstock.errors import Fenced, OutcomeUnknown
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.testing.choices import Faults
from penstock.testing.claims_cluster import FOUNDED, HB_MS, PARTITIONS, TOPIC
from penstock.testing.simulation import Host, Scenario, Simulation, Violated, judged

NAME = "penstock.testing.claims_takeovers"
EFFECTS = "effects"
SLOT = Slot("g", "t", 0)
STEP_MS = HB_MS // 10
INITIALISING_MS = HB_MS // 5


def effects_of(simulation: Simulation) -> list[int]:
    """Offsets whose effects are committed, in the order of the log."""
    stored = simulation.broker.partitions(EFFECTS)[0].stored
    return [int(each.entry.value or b"-1") for each in stored if each.fate.value == "committed"]


class Worker:
    """Processes one offset per transaction; what is committed says where to go on."""

    initialises_first = True

    def __init__(self, host: Host, fencing: type[Fencing]) -> None:
        self.host, self.simulation = host, host.simulation
        self.fencing = fencing(self._initialise)
        self.transactions = host.log(EFFECTS).transactions(
            group="g", instance=host.instance, announce=self.fencing.renew
        )
        if self.initialises_first:
            self.transactions.open()
        else:
            self.fencing.renew(f"g-{host.instance}-1")
        self.member = self._member()
        self._next: int | None = None
        self._tenure: Tenure | None = None
        self._is_open = False

    def _member(self) -> Member:
        tail = Tail(
            self.host.log(TOPIC),
            Snapshots(self.host.log(f"{TOPIC}.snapshots")),
            machine=Claims,
            instance=self.host.instance,
            monotonic_ms=self.host.now_ms,
            fresh_ms=HB_MS // 2,
            snapshot_every=10**6,
        )
        member = Member(
            tail,
            founded=FOUNDED,
            client=self.host.name,
            place=partition_of,
            monotonic_ms=self.host.now_ms,
            listener=Listener(gained=self._gained, lost=self._lost),
            reclaim=True,
            fencing=self.fencing,
        )
        member.want([SLOT])
        return member

    def step(self) -> int:
        self.member.step(0)
        if self._is_open:
            self._commit()
        elif self._tenure is not None and self.member.is_good(self._tenure) and self.fencing.is_announced:
            self._begin(self._tenure)
        return STEP_MS

    def _gained(self, tenure: Tenure) -> None:
        self._tenure, self._next = tenure, len(effects_of(self.simulation))
        self.simulation.reach("gained")
        crash_point("worker.gained")

    def _lost(self, tenure: Tenure, reason: str) -> None:
        self.simulation.reach("lost")
        if self._is_open:
            self.simulation.reach("lost with a transaction open")

    def _begin(self, tenure: Tenure) -> None:
        self.fencing.begun([tenure.slot])
        if not self.initialises_first and not self.transactions._epoch:
            crash_point("worker.initialises")
            self.transactions.open()
        self.transactions.begin()
        self._is_open = True
        self._guarded(lambda: self.transactions.send(EFFECTS, 0, b"%d" % (self._next or 0)))
        crash_point("worker.sent")

    def _commit(self) -> None:
        crash_point("worker.commits")
        if self._guarded(self.transactions.commit):
            self._is_open = False
            self.fencing.ended(is_known=True)
            self._next = (self._next or 0) + 1
            if self._tenure is not None:
                self._tenure.position = self._next

    def _guarded(self, call: Callable[[], None]) -> bool:
        """After a fence or a doubt: settle, go on under a fresh id, and read again where to go on."""
        try:
            call()
        except (Fenced, OutcomeUnknown) as trouble:
            self.simulation.reach(f"{type(trouble).__name__} at a transaction")
            self._is_open = False
            self.fencing.ended(is_known=False)
            self.transactions.settle_and_renew()
            self._next = len(effects_of(self.simulation))
            return False
        return True

    def _initialise(self, transactional_id: str) -> Initialisation:
        initialisation = Initialisation()

        def over() -> None:
            self.simulation.broker.initialise(transactional_id)
            self.simulation.reach("initialised another's id")
            initialisation.is_over = initialisation.is_done = True

        self.simulation.schedule(INITIALISING_MS, f"{transactional_id} is initialised", over)
        return initialisation


class Judge:
    """Effects are committed in the order of offsets, each once."""

    def judge(self, simulation: Simulation) -> None:
        effects = effects_of(simulation)
        if effects != list(range(len(effects))):
            raise Violated(f"not exactly once: the effects of {effects} were committed")

    def conclude(self, simulation: Simulation) -> None:
        workers = [host.actor for host in simulation.living() if isinstance(host.actor, Worker)]
        working = [w.host.instance for w in workers if w._tenure is not None and w.member.is_good(w._tenure)]
        if workers and len(working) != 1:
            raise Violated(f"at the end {working} work on the slot")


# Planted bugs


class _FencesNobody(Fencing):
    def granted(self, tenure: Tenure, producers: Iterable[str], *, own: str | None) -> None:
        super().granted(tenure, (), own=own)


class _FencesOnlyTheLast(Fencing):
    """A has a transaction open, B was granted the slot and died: only B is fenced."""

    def granted(self, tenure: Tenure, producers: Iterable[str], *, own: str | None) -> None:
        super().granted(tenure, sorted(set(producers) - {own})[-1:], own=own)


class _DoesNotWait(Fencing):
    """Begins to initialise, and reads the position at once."""

    def is_ready(self, tenure: Tenure) -> bool:
        return tenure.slot in self._grants


class _InitialisesLate(Worker):
    """Announces an id, and initialises it when it is first used: whoever fenced it meanwhile is fooled."""

    initialises_first = False


BUGS: dict[str, tuple[type[Worker], type[Fencing]]] = {
    "": (Worker, Fencing),
    "fences_nobody": (Worker, _FencesNobody),
    "fences_only_the_last": (Worker, _FencesOnlyTheLast),
    "does_not_wait": (Worker, _DoesNotWait),
    "announces_before_initialising": (_InitialisesLate, Fencing),
}


def takeovers(bug: str = "") -> Scenario:
    """Three members; who sleeps sleeps through two takeovers, with its transaction open."""
    faults = Faults(restart_ms=0, pause_ms=14 * HB_MS, until_ms=4 * HB_MS, transaction_timeout_ms=10**6)
    return _scenario("takeovers", bug, faults)


def close_calls(bug: str = "") -> Scenario:
    """Who sleeps wakes about when its successor begins."""
    faults = Faults(restart_ms=0, pause_ms=2 * HB_MS, until_ms=4 * HB_MS, transaction_timeout_ms=10**6)
    return _scenario("close_calls", bug, faults)


def takeovers_with_doubts(bug: str = "") -> Scenario:
    """Commits that are fenced or stay unanswered, appends that are late, doubled or lost, restarts."""
    faults = Faults(
        pause_ms=4 * HB_MS,
        delay_ms=HB_MS,
        duplicates=True,
        lost_acks=True,
        drops=True,
        slow_reads=True,
        fences=True,
        until_ms=8 * HB_MS,
        transaction_timeout_ms=10**6,
    )
    return _scenario("takeovers_with_doubts", bug, faults)


def _scenario(name: str, bug: str, faults: Faults) -> Scenario:
    worker, fencing = BUGS[bug]

    def build(simulation: Simulation, judge: Judge) -> None:
        simulation.broker.create(TOPIC, PARTITIONS)
        simulation.broker.create(f"{TOPIC}.snapshots", PARTITIONS)
        simulation.broker.create(EFFECTS, 1)
        for number, letter in enumerate("abc"):
            simulation.spawn(letter, lambda host: worker(host, fencing), after_ms=number)

    return judged(
        f"{NAME}:{name}" + (f"({bug})" if bug else ""),
        Judge,
        build,
        faults=faults,
        until_ms=faults.until_ms + faults.pause_ms + 20 * HB_MS,
        settles_ms=2 * HB_MS,
    )
