"""Members with transactions that sleep, die and doubt while they take a slot over: every effect is there once."""

from __future__ import annotations

import pytest

from penstock.testing import claims_takeovers as scenarios
from penstock.testing.simulate import Report, draw, enumerate_runs, run

DIES, SLEEPS = 1, 2


class Told:
    """Whoever is first at one of these points does what is said there; else everything takes its course."""

    def __init__(self, **points: int) -> None:
        self._points = {name.replace("_", ".", 1): what for name, what in points.items()}

    def pick(self, label: str, count: int) -> int:
        return self._points.pop(label.rpartition(" at ")[2], 0)


def must_hold(report: Report) -> Report:
    if report.failure is not None:
        raise report.failure
    return report


@pytest.mark.parametrize("name", ["takeovers", "takeovers_with_doubts", "close_calls"])
def test_drawn_runs_commit_every_effect_once(name: str) -> None:
    report = must_hold(draw(getattr(scenarios, name)(), range(120)))

    for state in ("lost with a transaction open", "Fenced at a transaction", "initialised another's id"):
        assert report.reached[state], state


@pytest.mark.long
@pytest.mark.parametrize("name", ["takeovers", "takeovers_with_doubts", "close_calls"])
def test_many_drawn_runs_commit_every_effect_once(name: str) -> None:
    must_hold(draw(getattr(scenarios, name)(), range(1_000, 5_000)))


@pytest.mark.parametrize("name", ["takeovers", "close_calls"])
def test_every_run_with_one_deviation_commits_every_effect_once(name: str) -> None:
    report = must_hold(enumerate_runs(getattr(scenarios, name)(), deviations_max=1))

    for point in ("worker.gained", "worker.sent", "worker.commits", "claims.asked", "claims.beaten"):
        assert report.reached[f"died at {point}"], point
        assert report.reached[f"slept at {point}"], point


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("takeovers", "fences_nobody"),
        ("takeovers", "announces_before_initialising"),
        ("close_calls", "does_not_wait"),
    ],
)
def test_enumeration_finds_the_planted_bug(name: str, bug: str) -> None:
    report = enumerate_runs(getattr(scenarios, name)(bug), deviations_max=1)

    assert report.failure is not None, f"{bug} was not found in {report.runs} runs"
    assert "not exactly once" in str(report.failure)


def test_one_with_a_transaction_open_and_one_that_died_before_it_fenced_are_both_fenced_by_the_third() -> None:
    simulation = run(scenarios.takeovers(), Told(worker_sent=SLEEPS, claims_fencing=DIES), replay="")

    assert simulation.reached["slept at worker.sent"] == simulation.reached["died at claims.fencing"] == 1
    assert simulation.reached["Fenced at a transaction"]


def test_who_fences_only_the_last_lets_two_commit() -> None:
    told = Told(worker_sent=SLEEPS, claims_fencing=DIES)

    with pytest.raises(AssertionError, match="not exactly once"):
        run(scenarios.takeovers("fences_only_the_last"), told, replay="")
