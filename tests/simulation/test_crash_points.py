"""Every named crash point of the ledger and of what stands on it is died at somewhere: a new one needs a scenario."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import penstock.testing
from penstock.testing.choices import Drawn
from penstock.testing.simulate import Scenario, run

ROOT = Path(__file__).parents[2]
CAPABILITIES = ("ledger", "claims", "queue")
NOT_ON_A_LOG = {
    "fenced.": "files, tried in tests/unit/claims/test_fenced.py",
    "job.": "a thread and a handler, tried in tests/unit/claims/test_job.py",
}
SEEDS = 25
"""How many runs of a scenario may look for what is missing."""


def crash_points() -> set[str]:
    """The names in the calls of `crash_point`."""
    trees = (
        ast.parse(path.read_text())
        for capability in CAPABILITIES
        for path in (ROOT / "src" / "penstock" / capability).rglob("*.py")
    )
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "crash_point"]
    return {name.value for name in named if isinstance(name, ast.Constant)}


def scenarios() -> Iterator[Callable[[], Scenario]]:
    """Every scenario of the package that can be made without an argument."""
    for module in pkgutil.iter_modules(penstock.testing.__path__):
        name = f"penstock.testing.{module.name}"
        for _, function in inspect.getmembers(importlib.import_module(name), inspect.isfunction):
            is_public = function.__module__ == name and not function.__name__.startswith("_")
            signature = inspect.signature(function)
            needs_nothing = all(each.default is not each.empty for each in signature.parameters.values())
            if is_public and needs_nothing and signature.return_annotation == "Scenario":
                yield function


class DeathAt:
    """A drawn run in which the first who comes to one of these points dies there."""

    def __init__(self, points: Collection[str], seed: int, *, rate: float) -> None:
        self.died_at: str | None = None
        self._points, self._drawn = points, Drawn(seed, rate=rate)

    def pick(self, label: str, count: int) -> int:
        _, _, point = label.partition(" at ")
        if self.died_at is None and point in self._points:
            self.died_at = point
            return 1
        return self._drawn.pick(label, count)


def test_somebody_dies_at_every_crash_point() -> None:
    """Where a scenario promises something only as long as nobody dies, passing the point has to do."""
    missing = {point for point in crash_points() if not point.startswith(tuple(NOT_ON_A_LOG))}
    assert missing

    for made, seed in ((made, seed) for made in scenarios() for seed in range(SEEDS)):
        if not missing:
            break
        scenario = made()
        has_deaths = scenario.faults.crashes
        choices = DeathAt(missing if has_deaths else (), seed, rate=scenario.rate if has_deaths else 0)
        simulation = run(scenario, choices, replay=f"this test ({scenario.name}, seed {seed})")
        missing -= {choices.died_at} if has_deaths else set(simulation.crash_points)

    assert missing == set(), "no simulation leads there; give one to penstock.testing"


def test_what_is_not_on_a_log_is_still_there() -> None:
    assert [prefix for prefix in NOT_ON_A_LOG if not any(point.startswith(prefix) for point in crash_points())] == []
