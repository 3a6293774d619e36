"""Members on one slot when everything goes wrong: no two act on an offset, none is skipped, only poison is buried."""

from __future__ import annotations

import pytest

from penstock.testing import range_scenarios as scenarios
from penstock.testing.simulate import Report, draw, enumerate_runs


def must_hold(report: Report) -> Report:
    if report.failure is not None:
        raise report.failure
    return report


@pytest.mark.parametrize(
    ("name", "seeds"), [("sharing", 60), ("sharing_with_outages", 50), ("sharing_with_snapshots", 50)]
)
def test_drawn_runs_hold(name: str, seeds: int) -> None:
    report = must_hold(draw(getattr(scenarios, name)(), range(seeds)))

    assert report.runs == seeds
    assert report.reached["granted again"]
    assert report.reached["given back"]
    assert report.reached["lost"]


def test_what_a_transactional_holder_left_is_taken_after_its_id_was_initialised() -> None:
    report = must_hold(draw(scenarios.transacting(), range(40)))

    assert report.reached["fenced"]


def test_poison_and_failures_are_buried_and_their_neighbours_are_not() -> None:
    report = must_hold(draw(scenarios.poison(), range(25)))

    assert report.reached["buried"]
    assert report.reached["append twice"]


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", ["sharing", "poison", "sharing_with_outages", "sharing_with_snapshots"])
def test_many_drawn_runs_hold(name: str) -> None:
    must_hold(draw(getattr(scenarios, name)(), range(1_000, 2_000)))


def test_every_run_of_two_members_with_one_deviation_holds_and_reaches_every_crash_point() -> None:
    report = must_hold(enumerate_runs(scenarios.pair(), deviations_max=1))

    for point in ("claims.range_asked", "claims.range_acked", "ledger.appended", "worker.processed"):
        assert report.reached[f"died at {point}"], point
        assert report.reached[f"slept at {point}"], point


@pytest.mark.parametrize("bug", [bug for bug in scenarios.BUGS if bug])
def test_the_planted_bug_is_found(bug: str) -> None:
    report = enumerate_runs(scenarios.pair(bug), deviations_max=1)
    for scenario in (scenarios.poison(bug), scenarios.sharing(bug)):
        if report.failure is None:
            report = draw(scenario, range(60))

    assert report.failure is not None, f"{bug} was not found"
