"""Members when everything goes wrong: no two act on a slot, nothing is skipped, shares become fair."""

from __future__ import annotations

import pytest

from penstock.testing import claims_scenarios as scenarios
from penstock.testing.simulate import Report, draw, enumerate_runs


def must_hold(report: Report) -> Report:
    if report.failure is not None:
        raise report.failure
    return report


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("members", 150),
        ("members_that_stay_dead", 75),
        ("members_with_clock_steps", 75),
        ("members_with_snapshots", 75),
    ],
)
def test_drawn_runs_hold(name: str, seeds: int) -> None:
    report = must_hold(draw(getattr(scenarios, name)(), range(seeds)))

    assert report.runs == seeds
    assert report.reached["taken over after expiry"]
    assert report.reached["released"]


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", ["members", "members_with_clock_steps", "members_with_snapshots"])
def test_many_drawn_runs_hold(name: str) -> None:
    must_hold(draw(getattr(scenarios, name)(), range(1_000, 2_000)))


def test_every_run_of_two_members_with_one_deviation_holds_and_reaches_every_crash_point() -> None:
    report = must_hold(enumerate_runs(scenarios.pair(), deviations_max=1))

    for point in ("claims.asked", "claims.beaten", "claims.released", "ledger.appended", "worker.processed"):
        assert report.reached[f"died at {point}"], point
        assert report.reached[f"slept at {point}"], point
    assert report.reached["taken over after expiry"]


@pytest.mark.parametrize("bug", [bug for bug in scenarios.BUGS if bug])
def test_enumeration_finds_the_planted_bug(bug: str) -> None:
    report = enumerate_runs(scenarios.pair(bug), deviations_max=1)

    assert report.failure is not None, f"{bug} was not found in {report.runs} runs"
