"""A cluster from one seed: real runtime objects on a log in memory, under virtual time, with everything going wrong.

A *scenario* builds actors on hosts and says what must hold. A run is a sequence of *choices*: who goes first, whether
an append is delayed, doubled or given up, whether a process dies or sleeps at a crash point. Choice 0 is always the
undisturbed course; anything else is a *deviation*.

    draw        takes the choices from a seed: long runs, many deviations at once
    enumerate   tries every run with up to D deviations: short runs, nothing left out

Drawing is good at volume and bad at holes: all real protocol bugs so far were found by enumeration. A failing run
prints the command that replays it.

    python -m penstock.testing.simulate penstock.testing.scenarios:counter --seed 17
    python -m penstock.testing.simulate penstock.testing.scenarios:counter --deviations 12:1,40:2
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from penstock.crash import armed
from penstock.ledger.memory_log import MemoryBroker
from penstock.testing.simulated_log import SimulatedLog

START_MS = 1_000_000


class Violated(Exception):
    """An invariant does not hold."""


class SimulationFailed(AssertionError):
    """A run violated an invariant; says which, and how to see it again."""

    def __init__(self, scenario: str, replay: str, violation: Violated, trace: Sequence[str]) -> None:
        self.replay, self.violation, self.trace = replay, violation, list(trace)
        last = "\n".join(f"    {line}" for line in self.trace[-25:])
        super().__init__(f"{scenario}: {violation}\n  replay: {replay}\n  the last steps:\n{last}")


class _Died(BaseException):
    """Thrown through an actor at a crash point; no handler in production code may catch it."""


# Choices


class Choices(Protocol):
    def pick(self, label: str, count: int) -> int:
        """A number below `count`; 0 is the undisturbed course."""


class Drawn:
    """Choices from a seed: a deviation now and then."""

    def __init__(self, seed: int, *, rate: float) -> None:
        self._random, self._rate = random.Random(seed), rate

    def pick(self, label: str, count: int) -> int:
        if label == "order":
            return self._random.randrange(count)
        return self._random.randrange(1, count) if self._random.random() < self._rate else 0


class Scripted:
    """The undisturbed course, but for the given deviations (number of the choice → what is chosen)."""

    def __init__(self, deviations: Mapping[int, int]) -> None:
        self._deviations = deviations
        self.counts: list[int] = []

    def pick(self, label: str, count: int) -> int:
        number = len(self.counts)
        self.counts.append(count)
        return min(self._deviations.get(number, 0), count - 1)


# What can go wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which deviations a scenario allows. Spans of time in milliseconds; 0 switches that kind off."""

    crashes: bool = True
    restart_ms: int = 300
    """How long the dead stay dead; 0 is for ever."""
    pause_ms: int = 0
    delay_ms: int = 0
    duplicates: bool = False
    lost_acks: bool = False
    drops: bool = False
    slow_reads: bool = False
    clock_step_ms: int = 0
    fences: bool = False
    transaction_timeout_ms: int = 10_000
    until_ms: int = 2_000
    """Faults stop after this much virtual time, so that the end of a run shows whether it recovers."""


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

    @property
    def instance(self) -> str:
        return f"{self.name}-{self.incarnation}"

    def now_ms(self) -> int:
        return self.simulation.now_ms

    def log(self, topic: str) -> SimulatedLog:
        return SimulatedLog(self, self.simulation.broker.log(topic))


@dataclass(frozen=True, slots=True, order=True)
class _Due:
    at_ms: int
    number: int
    label: str = field(compare=False)
    run: Callable[[], None] = field(compare=False)
    host: Host | None = field(compare=False, default=None)


class Simulation:
    """One run. Everything that happens is decided by `choices`; nothing else is random."""

    def __init__(self, scenario: Scenario, choices: Choices) -> None:
        self.scenario, self.faults = scenario, scenario.faults
        self.now_ms = START_MS
        self.clock_step_ms = 0
        self.broker = MemoryBroker(
            now_ms=lambda: self.now_ms + self.clock_step_ms,
            transaction_timeout_ms=scenario.faults.transaction_timeout_ms,
        )
        self.hosts: dict[str, Host] = {}
        self.trace: list[str] = []
        self.reached: Counter[str] = Counter()
        self.crash_points: set[str] = set()
        self._choices = choices
        self._due: list[_Due] = []
        self._scheduled_count = 0
        self._build_actor: dict[str, Callable[[Host], Actor]] = {}
        self._current: Host | None = None

    # For scenarios

    def spawn(self, name: str, build: Callable[[Host], Actor], *, after_ms: int = 0) -> None:
        self._build_actor[name] = build
        self.schedule(after_ms, f"{name} starts", lambda: self._start(name, 0))

    def schedule(self, after_ms: int, label: str, run: Callable[[], None], host: Host | None = None) -> None:
        self._scheduled_count += 1
        self._due.append(_Due(self.now_ms + after_ms, self._scheduled_count, label, run, host))

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
        return chosen

    def living(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.is_alive and host.actor is not None]

    # Running

    def run(self) -> None:
        self.scenario.build(self)
        self._run_until(START_MS + self.scenario.until_ms)
        self.scenario.conclude(self)

    def _run_until(self, end_ms: int) -> None:
        while True:
            runnable = [due for due in self._due if due.host is None or not due.host.is_asleep]
            if not runnable:
                break
            first = min(runnable)
            if first.at_ms > end_ms:
                break
            self._advance(first.at_ms)
            self._run_one(sorted(due for due in runnable if due.at_ms <= self.now_ms))
            self.scenario.judge(self)
        self.now_ms = max(self.now_ms, end_ms)

    def _advance(self, to_ms: int) -> None:
        if to_ms <= self.now_ms:
            return
        self.now_ms = to_ms
        step_ms = self.faults.clock_step_ms
        if step_ms:
            match self.choose("log clock", ["steady", "ahead", "back"]):
                case "ahead":
                    self.clock_step_ms += step_ms
                    self.reach("log clock stepped ahead")
                case "back":
                    self.clock_step_ms -= step_ms
                    self.reach("log clock stepped back")

    def _run_one(self, runnable: list[_Due]) -> None:
        labels = [f"{number} {due.label}" for number, due in enumerate(runnable)]
        due = runnable[labels.index(self.choose("order", labels))]
        self._due.remove(due)
        self.note(due.label)
        due.run()

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
        self.crash_points.add(name)
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


# Scenarios and runs


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


@dataclass(slots=True)
class Report:
    """What a series of runs did, and which interesting states it reached."""

    runs: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    crash_points: set[str] = field(default_factory=set)
    failure: SimulationFailed | None = None

    def add(self, simulation: Simulation) -> None:
        self.runs += 1
        self.reached.update(simulation.reached)
        self.crash_points |= simulation.crash_points


def run(scenario: Scenario, choices: Choices, *, replay: str) -> Simulation:
    """One run; raises SimulationFailed with the command that replays it."""
    simulation = Simulation(scenario, choices)
    with armed(simulation.at_crash_point):
        try:
            simulation.run()
        except Violated as violation:
            raise SimulationFailed(scenario.name, replay, violation, simulation.trace) from violation
    return simulation


def run_seed(scenario: Scenario, seed: int) -> Simulation:
    return run(scenario, Drawn(seed, rate=scenario.rate), replay=_command(scenario, f"--seed {seed}"))


def run_deviations(scenario: Scenario, deviations: Mapping[int, int]) -> tuple[Simulation, list[int]]:
    choices = Scripted(deviations)
    spelled = ",".join(f"{number}:{option}" for number, option in deviations.items()) or "none"
    return run(scenario, choices, replay=_command(scenario, f"--deviations {spelled}")), choices.counts


def draw(scenario: Scenario, seeds: Iterable[int]) -> Report:
    """Runs from seeds, until one fails."""
    report = Report()
    for seed in seeds:
        try:
            report.add(run_seed(scenario, seed))
        except SimulationFailed as failure:
            report.failure = failure
            report.runs += 1
            break
    return report


def enumerate_runs(scenario: Scenario, *, deviations_max: int, runs_max: int | None = None) -> Report:
    """Every run with up to so many deviations, fewest first, until one fails."""
    report = Report()
    waiting: list[dict[int, int]] = [{}]
    for deviations in waiting:  # grows while it is walked: breadth first
        if runs_max is not None and report.runs >= runs_max:
            break
        try:
            simulation, counts = run_deviations(scenario, deviations)
        except SimulationFailed as failure:
            report.failure = failure
            report.runs += 1
            break
        report.add(simulation)
        if len(deviations) < deviations_max:
            waiting.extend(_one_more(deviations, counts))
    return report


def _one_more(deviations: Mapping[int, int], counts: Sequence[int]) -> Iterator[dict[int, int]]:
    for number in range(max(deviations, default=-1) + 1, len(counts)):
        for option in range(1, counts[number]):
            yield {**deviations, number: option}


def _command(scenario: Scenario, how: str) -> str:
    return f"python -m penstock.testing.simulate {scenario.name} {how}"


# From the command line


def find_scenario(name: str) -> Scenario:
    """`module:function` or `module:function(argument)`; the function returns a Scenario."""
    module, _, call = name.partition(":")
    function, _, argument = call.rstrip(")").partition("(")
    scenario = getattr(importlib.import_module(module), function)(*([argument] if argument else []))
    if not isinstance(scenario, Scenario):
        raise TypeError(f"{name} gave no Scenario")
    return scenario


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.simulate", description="Run or replay a simulation."
    )
    parser.add_argument("scenario", help="module:function, for example penstock.testing.scenarios:counter")
    parser.add_argument("--seed", type=int, help="replay one drawn run and print its trace")
    parser.add_argument("--seeds", type=int, help="draw so many runs")
    parser.add_argument("--deviations", help="replay one enumerated run, for example 12:1,40:2 (or none)")
    parser.add_argument("--enumerate", type=int, dest="deviations_max", help="every run with up to so many deviations")
    given = parser.parse_args()
    scenario = find_scenario(given.scenario)
    try:
        if given.seed is not None:
            print(*run_seed(scenario, given.seed).trace, sep="\n")
            return 0
        if given.deviations is not None:
            pairs = [pair.split(":") for pair in given.deviations.split(",") if ":" in pair]
            print(*run_deviations(scenario, {int(n): int(o) for n, o in pairs})[0].trace, sep="\n")
            return 0
    except SimulationFailed as failure:
        print(*failure.trace, sep="\n")
        print(failure, file=sys.stderr)
        return 5
    report = draw(scenario, range(given.seeds or 100))
    if given.deviations_max is not None:
        report = enumerate_runs(scenario, deviations_max=given.deviations_max)
    print(f"{report.runs} runs")
    print(*(f"{count:>8}  {state}" for state, count in sorted(report.reached.items())), sep="\n")
    if report.failure is not None:
        print(report.failure, file=sys.stderr)
    return 5 if report.failure else 0


if __name__ == "__main__":
    # Scenarios import this module by its name; its classes must be the same ones.
    from penstock.testing.simulate import main as main_by_name

    sys.exit(main_by_name())
