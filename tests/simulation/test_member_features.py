"""Members that name themselves, obey pauses and share whole topics, when they die or sleep at the wrong moment."""

from __future__ import annotations

import pytest

from penstock.testing import member_scenarios as scenarios
from penstock.testing.simulate import Report, draw, enumerate_runs, run_deviations

BUGS = {"naming": scenarios.NAMING_BUGS, "paused": scenarios.PAUSE_BUGS, "whole_topics": scenarios.WHOLE_BUGS}
REACHED = {"naming": "two of one name, for a moment", "paused": "paused for a while", "whole_topics": "released"}


def must_hold(report: Report) -> Report:
    if report.failure is not None:
        raise report.failure
    return report


@pytest.mark.parametrize("name", BUGS)
def test_drawn_runs_hold(name: str) -> None:
    report = must_hold(draw(getattr(scenarios, name)(), range(30)))

    assert report.runs == 30
    assert report.reached[REACHED[name]]


@pytest.mark.parametrize("name", BUGS)
def test_runs_with_one_deviation_hold(name: str) -> None:
    report = must_hold(enumerate_runs(getattr(scenarios, name)(), deviations_max=1, runs_max=100))

    assert report.reached["taken over after expiry"]


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", BUGS)
def test_every_run_with_one_deviation_holds_and_many_drawn_ones(name: str) -> None:
    must_hold(enumerate_runs(getattr(scenarios, name)(), deviations_max=1))
    must_hold(draw(getattr(scenarios, name)(), range(1_000, 1_500)))


@pytest.mark.parametrize(("name", "bug"), [(name, bug) for name, bugs in BUGS.items() for bug in bugs if bug])
def test_the_planted_bug_is_found(name: str, bug: str) -> None:
    report = enumerate_runs(getattr(scenarios, name)(bug), deviations_max=1)

    assert report.failure is not None, f"{bug} was not found in {report.runs} runs"


def test_undisturbed_members_are_called_by_the_lowest_numbers() -> None:
    simulation, _ = run_deviations(scenarios.naming(), {})

    called = {state for state in simulation.reached if state.startswith("called ")}
    assert called == {"called box-0", "called box-1", "called box-2"}
