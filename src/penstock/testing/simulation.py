"""One run of a simulated cluster: hosts with real runtime objects, a log in memory, virtual time.

A *scenario* builds actors on hosts and says what must hold. Whatever can happen in more than one way is asked of the
run's `Choices`; nothing else is random, so the same choices give the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NoReturn, Protocol, TypeVar
from weakref import WeakKeyDictionary

from penstock.ledger.memory_log import MemoryBroker
from penstock.observe.events import Event
from penstock.testing.choices import Choices, Faults
from penstock.testing.simulated_log import SimulatedLog

START_MS = 1_000_000


class Violated(Exception):
    """An invariant does not hold."""


class _Died(BaseException):
    """Thrown through an actor at a crash point; no handler in production code may catch it."""


class Actor(Protocol):
    def step(self) -> int:
        """Do what can be done now; in how many milliseconds to come back."""


@dataclass(slots=True)
class Host:
    """One process of the simulated cluster, from one start to its death."""

    simulation: Simulation
    name: str
    incarnation: int
    actor: Actor | None = None
    is_alive: bool = True
    is_asleep: bool = False
    queues: dict[tuple[str, int], int] = field(default_factory=dict)
    """When the last append under way to a partition will arrive: one writer's appends stay in order."""
    instance: str = ""

    def __post_init__(self) -> None:
        self.instance = f"{self.name}-{self.incarnation}"

    def now_ms(self) -> int:
        return self.simulation.now_ms

    def log(self, topic: str) -> SimulatedLog:
        return SimulatedLog(self, self.simulation.broker.log(topic))


@dataclass(frozen=True, slots=True)
class _Due:
    at_ms: int
    number: int
    label: str
    run: Callable[[], None]
    host: Host | None = None


_in_order = attrgetter("at_ms", "number")


class Simulation:
    """One run. Everything that happens is decided by `choices`; nothing else is random."""

    def __init__(self, scenario: Scenario, choices: Choices) -> None:
        self.scenario, self.faults = scenario, scenario.faults
        self.now_ms = START_MS
        self.clock_step_ms = 0
        self.away_until_ms = 0
        self.broker = MemoryBroker(
            now_ms=lambda: self.now_ms + self.clock_step_ms,
            transaction_timeout_ms=scenario.faults.transaction_timeout_ms,
        )
        self.hosts: dict[str, Host] = {}
        self.trace: list[str] = []
        self.reached: Counter[str] = Counter()
        self.crash_points: Counter[str] = Counter()
        self.stepped: Host | None = None
        """Whose step is over, for a judge: nobody else has changed by it. None if it was something else."""
        self.is_disturbed = False
        """Whether anything but the order of events has deviated so far."""
        self._choices = choices
        self._due: list[_Due] = []
        self._scheduled_count = 0
        self._build_actor: dict[str, Callable[[Host], Actor]] = {}
        self._current: Host | None = None
        self._well_since_ms: int | None = None

    # For scenarios

    def spawn(self, name: str, build: Callable[[Host], Actor], *, after_ms: int = 0) -> None:
        self._build_actor[name] = build
        self.schedule(after_ms, f"{name} starts", lambda: self._start(name, 0))

    def schedule(self, after_ms: int, label: str, run: Callable[[], None], host: Host | None = None) -> None:
        self._scheduled_count += 1
        self._due.append(_Due(self.now_ms + after_ms, self._scheduled_count, label, run, host))

    def shape(self, least: int, most: int) -> int:
        """A number from `least` to `most` for the scenario to build itself by; undisturbed it is the least."""
        return least + self._choices.pick("shape", most - least + 1)

    def reach(self, state: str) -> None:
        """Count that an interesting state was really reached."""
        self.reached[state] += 1

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now_ms - START_MS:>6} {what}")

    def choose(self, label: str, names: Sequence[str]) -> str:
        """One of the names; the first is the undisturbed course. After `faults.until_ms` nothing deviates any more."""
        if len(names) < 2 or (label != "order" and self.now_ms - START_MS > self.faults.until_ms):
            return names[0]
        chosen = names[self._choices.pick(label, len(names))]
        if chosen != names[0]:
            self.note(f"-- {label}: {chosen}")
            self.is_disturbed = self.is_disturbed or label != "order"
        return chosen

    def living(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.is_alive and host.actor is not None]

    def die(self) -> NoReturn:
        """The host whose step it is dies of its work, whatever the choices say."""
        raise _Died

    def is_away(self) -> bool:
        """Whether the leader of the ledgers is away."""
        return self.now_ms < self.away_until_ms

    def on_event(self, event: Event) -> None:
        """What production code tells is an interesting state, too."""
        self.reach(f"told {type(event).__name__}")

    # Running

    def run(self) -> None:
        self.scenario.build(self)
        self._run_until(START_MS + self.scenario.until_ms)
        self.scenario.conclude(self)

    def _has_settled(self) -> bool:
        """Whether faults are over, and all has been well for so long that going on would show nothing new."""
        settles_ms = self.scenario.settles_ms
        if not settles_ms or self.now_ms - START_MS <= self.faults.until_ms:
            return False
        if any(host.is_asleep for host in self.hosts.values()):
            return False
        try:
            self.scenario.conclude(self)
        except Violated:
            self._well_since_ms = None
            return False
        self._well_since_ms = self._well_since_ms or self.now_ms
        return self.now_ms - self._well_since_ms >= settles_ms

    def _run_until(self, end_ms: int) -> None:
        while True:
            if self._has_settled():
                return
            runnable = [due for due in self._due if due.host is None or not due.host.is_asleep]
            first_ms = min((due.at_ms for due in runnable), default=end_ms + 1)
            if first_ms > end_ms:
                break
            self._advance(first_ms)
            self._run_one([due for due in runnable if due.at_ms <= self.now_ms])
            self.scenario.judge(self)
        self.now_ms = max(self.now_ms, end_ms)

    def _advance(self, to_ms: int) -> None:
        if to_ms <= self.now_ms:
            return
        self.now_ms = to_ms
        if self.faults.clock_step_ms:
            self._step_clock()
        if self.faults.outage_ms and not self.is_away() and self.choose("leader", ["there", "away"]) == "away":
            self.away_until_ms = self.now_ms + self.faults.outage_ms
            self.reach("leader away")
        if self.faults.compaction and self.choose("compaction", ["waits", "runs"]) == "runs":
            self._compact()

    def _step_clock(self) -> None:
        courses = ["steady", "ahead", "back"] if self.faults.clock_steps_back else ["steady", "ahead"]
        match self.choose("log clock", courses):
            case "ahead":
                self.clock_step_ms += self.faults.clock_step_ms
                self.reach("log clock stepped ahead")
            case "back":
                self.clock_step_ms -= self.faults.clock_step_ms
                self.reach("log clock stepped back")

    def _compact(self) -> None:
        for topic in self.broker.topics():
            if topic.endswith(".snapshots") and self.broker.compact(topic):
                self.reach("snapshots compacted")

    def _run_one(self, runnable: list[_Due]) -> None:
        due = runnable[0]
        if len(runnable) > 1:
            runnable.sort(key=_in_order)
            labels = [f"{number} {due.label}" for number, due in enumerate(runnable)]
            due = runnable[labels.index(self.choose("order", labels))]
        self._due.remove(due)
        self.note(due.label)
        due.run()
        self.stepped = due.host

    def _start(self, name: str, incarnation: int) -> None:
        host = self.hosts[name] = Host(self, name, incarnation)
        with self._in(host):
            host.actor = self._build_actor[name](host)
        if host.is_alive:
            self._schedule_step(host, 0)

    def _schedule_step(self, host: Host, after_ms: int) -> None:
        self.schedule(after_ms, f"{host.instance} steps", lambda: self._step(host), host)

    def _step(self, host: Host) -> None:
        if not host.is_alive or host.actor is None:
            return
        after_ms = 1
        with self._in(host):
            after_ms = host.actor.step()
        if host.is_alive:
            self._schedule_step(host, after_ms)

    @contextmanager
    def _in(self, host: Host) -> Iterator[None]:
        before, self._current = self._current, host
        try:
            yield
        except _Died:
            self._bury(host)
        finally:
            self._current = before

    def _bury(self, host: Host) -> None:
        host.is_alive = False
        if self.faults.restart_ms:
            self.schedule(
                self.faults.restart_ms, f"{host.name} restarts", lambda: self._start(host.name, host.incarnation + 1)
            )

    def at_crash_point(self, name: str) -> None:
        """Die here, or sleep for longer than any lease while the rest of the world goes on."""
        self.crash_points[name] += 1
        host = self._current
        if host is None:
            return
        options = ["go on"]
        options += ["die"] if self.faults.crashes else []
        options += ["sleep"] if self.faults.pause_ms else []
        match self.choose(f"{host.instance} at {name}", options):
            case "die":
                self.reach(f"died at {name}")
                raise _Died
            case "sleep":
                self.reach(f"slept at {name}")
                self._sleep(host)

    def _sleep(self, host: Host) -> None:
        host.is_asleep = True
        self._current = None
        try:
            self._run_until(self.now_ms + self.faults.pause_ms)
        finally:
            host.is_asleep = False
            self._current = host
        self.note(f"{host.instance} wakes")


# Scenarios


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to build, what must hold after every step, and what must hold at the end."""

    name: str
    build: Callable[[Simulation], None]
    judge: Callable[[Simulation], None]
    conclude: Callable[[Simulation], None]
    faults: Faults
    until_ms: int
    rate: float = 0.03
    """How often a drawn run deviates."""
    settles_ms: int = 0
    """A run may end before `until_ms` when it could have been concluded all this time; 0: it never does."""


class Judging(Protocol):
    """Watches one run."""

    def judge(self, simulation: Simulation) -> None:
        """Raises Violated if something does not hold after a step."""

    def conclude(self, simulation: Simulation) -> None:
        """Raises Violated if something does not hold at the end."""


J = TypeVar("J", bound=Judging)


def judged(
    name: str,
    judge: Callable[[], J],
    build: Callable[[Simulation, J], None],
    *,
    faults: Faults,
    until_ms: int,
    rate: float = 0.03,
    settles_ms: int = 0,
) -> Scenario:
    """A scenario in which every run has a judge of its own."""
    judges: WeakKeyDictionary[Simulation, J] = WeakKeyDictionary()

    def begin(simulation: Simulation) -> None:
        judges[simulation] = judge()
        build(simulation, judges[simulation])

    return Scenario(
        name=name,
        build=begin,
        judge=lambda simulation: judges[simulation].judge(simulation),
        conclude=lambda simulation: judges[simulation].conclude(simulation),
        faults=faults,
        until_ms=until_ms,
        rate=rate,
        settles_ms=settles_ms,
    )
