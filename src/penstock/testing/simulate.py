"""A cluster from one seed: real runtime objects on a log in memory, under virtual time, with everything going wrong.

    draw              takes the choices of a run from a seed: long runs, many deviations at once
    enumerate_runs    tries every run with up to D deviations: short runs, nothing left out
    crash_everywhere  lets every host die at every crash point, the first, second and last time that it passes

Drawing is good at volume and bad at holes: all real protocol bugs so far were found by enumeration. A failing run
prints the command that replays it.

    python -m penstock.testing.simulate penstock.testing.counter_scenarios:counter --seed 17
    python -m penstock.testing.simulate penstock.testing.counter_scenarios:counter --deviations 12:1,40:2
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from penstock.crash import armed
from penstock.observe.events import subscribed
from penstock.testing.choices import Choices, Drawn, Faults, Scripted
from penstock.testing.simulation import Host, Scenario, Simulation, Violated, judged

__all__ = [
    "Faults",
    "Host",
    "Report",
    "Scenario",
    "Simulation",
    "SimulationFailed",
    "Violated",
    "crash_everywhere",
    "draw",
    "draw_in_parallel",
    "enumerate_runs",
    "find_scenario",
    "judged",
    "run_deviations",
    "run_seed",
]

SEEDS_AT_ONCE = 20
"""How many runs a process takes from the pile at a time."""


class SimulationFailed(AssertionError):
    """A run violated an invariant; says which, and how to see it again."""

    def __init__(self, scenario: str, replay: str, violation: Violated, trace: Sequence[str]) -> None:
        self.scenario, self.replay, self.violation, self.trace = scenario, replay, violation, list(trace)
        last = "\n".join(f"    {line}" for line in self.trace[-25:])
        super().__init__(f"{scenario}: {violation}\n  replay: {replay}\n  the last steps:\n{last}")

    def __reduce__(self) -> tuple[Any, ...]:
        """It comes whole out of another process."""
        return type(self), (self.scenario, self.replay, self.violation, self.trace)


@dataclass(slots=True)
class Report:
    """What a series of runs did, and which interesting states it reached."""

    runs: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    crash_points: Counter[str] = field(default_factory=Counter)
    failure: SimulationFailed | None = None

    def add(self, simulation: Simulation) -> None:
        self.runs += 1
        self.reached.update(simulation.reached)
        self.crash_points.update(simulation.crash_points)

    def join(self, other: Report) -> None:
        self.runs += other.runs
        self.reached.update(other.reached)
        self.crash_points.update(other.crash_points)
        self.failure = self.failure or other.failure

    def fail(self, failure: SimulationFailed) -> None:
        self.runs += 1
        self.failure = failure


# One run


def run(scenario: Scenario, choices: Choices, *, replay: str) -> Simulation:
    """One run; raises SimulationFailed with the command that replays it."""
    simulation = Simulation(scenario, choices)
    with armed(simulation.at_crash_point), subscribed(simulation.on_event):
        try:
            simulation.run()
        except Violated as violation:
            raise SimulationFailed(scenario.name, replay, violation, simulation.trace) from violation
    return simulation


def run_seed(scenario: Scenario, seed: int) -> Simulation:
    return run(scenario, Drawn(seed, rate=scenario.rate), replay=_command(scenario, f"--seed {seed}"))


def run_deviations(scenario: Scenario, deviations: Mapping[int, int]) -> tuple[Simulation, Scripted]:
    choices = Scripted(deviations)
    spelled = ",".join(f"{number}:{option}" for number, option in deviations.items()) or "none"
    return run(scenario, choices, replay=_command(scenario, f"--deviations {spelled}")), choices


def _command(scenario: Scenario, how: str) -> str:
    return f"python -m penstock.testing.simulate {shlex.quote(scenario.name)} {how}"


# Many runs


def draw(scenario: Scenario, seeds: Iterable[int]) -> Report:
    """Runs from seeds, until one fails."""
    report = Report()
    for seed in seeds:
        try:
            report.add(run_seed(scenario, seed))
        except SimulationFailed as failure:
            report.fail(failure)
            break
    return report


def draw_in_parallel(name: str, seeds: range, *, processes: int) -> Report:
    """The same for the scenario of that name, in several processes; of the failures the one of the lowest seed."""
    report = Report()
    piles = [seeds[at : at + SEEDS_AT_ONCE] for at in range(0, len(seeds), SEEDS_AT_ONCE)]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(_draw_pile, [name] * len(piles), piles):
            report.join(part)
            if report.failure is not None:
                pool.shutdown(cancel_futures=True)
                break
    return report


def _draw_pile(name: str, seeds: range) -> Report:
    return draw(find_scenario(name), seeds)


def enumerate_runs(scenario: Scenario, *, deviations_max: int, runs_max: int | None = None) -> Report:
    """Every run with up to so many deviations, fewest first, until one fails."""
    report = Report()
    waiting: list[dict[int, int]] = [{}]
    for deviations in waiting:  # grows while it is walked: breadth first
        if runs_max is not None and report.runs >= runs_max:
            break
        try:
            simulation, choices = run_deviations(scenario, deviations)
        except SimulationFailed as failure:
            report.fail(failure)
            break
        report.add(simulation)
        if len(deviations) < deviations_max:
            waiting.extend(_one_more(deviations, choices.counts))
    return report


def _one_more(deviations: Mapping[int, int], counts: Sequence[int]) -> Iterator[dict[int, int]]:
    for number in range(max(deviations, default=-1) + 1, len(counts)):
        for option in range(1, counts[number]):
            yield {**deviations, number: option}


# Deaths


def crash_everywhere(scenario: Scenario, points: Collection[str] = (), *, bases_max: int = 1_000) -> Report:
    """Every host dies at every crash point that it passes: the first, second and last time.

    Where the undisturbed course does not lead every host to all of `points`, runs with one deviation are searched for
    it, and the death comes on top. `reached` tells "a died at ledger.cut, time 2" (or "last").
    """
    report, done = Report(), set[str]()
    try:
        for base in islice(_bases(scenario, points, done), bases_max):
            simulation, choices = run_deviations(scenario, base)
            report.add(simulation)
            for state, number in _passes(choices, after=max(base, default=-1)).items():
                if state not in done:
                    done.add(state)
                    report.add(run_deviations(scenario, {**base, number: 1})[0])
                    report.reached[state] += 1
    except SimulationFailed as failure:
        report.fail(failure)
    return report


def _bases(scenario: Scenario, points: Collection[str], done: set[str]) -> Iterator[dict[int, int]]:
    """The undisturbed course, then those with one deviation, until there was a first death everywhere."""
    yield {}
    simulation, choices = run_deviations(scenario, {})
    wanted = {f"{name} died at {point}, time 1" for name in simulation.hosts for point in points}
    for base in _one_more({}, choices.counts):
        if wanted <= done:
            return
        if all(choices.labels[number] != "order" for number in base):
            yield base


def _passes(choices: Scripted, *, after: int) -> dict[str, int]:
    """Who may die where and when → the number of that choice."""
    passes: dict[str, list[int]] = {}
    for number, label in enumerate(choices.labels):
        instance, at, point = label.partition(" at ")
        if at and number > after:
            passes.setdefault(f"{instance.rpartition('-')[0]} died at {point}", []).append(number)
    return {
        f"{who}, time {which}": number
        for who, numbers in passes.items()
        for which, number in [*zip("12", numbers, strict=False), ("last", numbers[-1])]
    }


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
    given = _parser().parse_args()
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
    if given.deviations_max is not None:
        report = enumerate_runs(scenario, deviations_max=given.deviations_max)
    else:
        seeds = range(given.start, given.start + given.seeds)
        report = draw_in_parallel(given.scenario, seeds, processes=given.processes)
    return _told(report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.simulate", description="Run or replay a simulation."
    )
    parser.add_argument("scenario", help="module:function, for example penstock.testing.counter_scenarios:counter")
    parser.add_argument("--seed", type=int, help="replay one drawn run and print its trace")
    parser.add_argument("--seeds", type=int, default=100, help="draw so many runs")
    parser.add_argument("--start", type=int, default=0, help="the first seed to draw from")
    parser.add_argument("--processes", type=int, default=1, help="how many processes draw")
    parser.add_argument("--deviations", help="replay one enumerated run, for example 12:1,40:2 (or none)")
    parser.add_argument("--enumerate", type=int, dest="deviations_max", help="every run with up to so many deviations")
    return parser


def _told(report: Report) -> int:
    print(f"{report.runs} runs")
    print(*(f"{count:>8}  {state}" for state, count in sorted(report.reached.items())), sep="\n")
    if report.failure is not None:
        print(report.failure, file=sys.stderr)
    return 5 if report.failure else 0


if __name__ == "__main__":
    # Scenarios import this module by its name; its classes must be the same ones.
    from penstock.testing.simulate import main as main_by_name

    sys.exit(main_by_name())
