"""What real members promise: nothing is processed twice at most once (I5), and a slot is taken over in time (I9)."""

from __future__ import annotations

import pytest

from penstock.testing import claims_promises as scenarios
from penstock.testing.simulate import draw, enumerate_runs


def test_nothing_is_processed_twice_in_any_run_with_one_deviation() -> None:
    report = enumerate_runs(scenarios.at_most_once(), deviations_max=1)

    assert report.failure is None, str(report.failure)
    assert report.reached["dropped: its commit was not accepted"]
    for point in ("claims.beaten", "worker.committed", "worker.processes"):
        assert report.reached[f"slept at {point}"], point


def test_nothing_is_processed_twice_in_drawn_runs() -> None:
    report = draw(scenarios.at_most_once(), range(60))

    assert report.failure is None, str(report.failure)
    assert report.reached["processed"]


@pytest.mark.parametrize("bug", [bug for bug in scenarios.CARELESS if bug])
def test_who_processes_without_the_read_back_processes_twice(bug: str) -> None:
    report = enumerate_runs(scenarios.at_most_once(bug), deviations_max=1)

    assert report.failure is not None
    assert "I5" in str(report.failure)


def test_a_slot_is_granted_in_time_wherever_its_owner_dies_or_leaves() -> None:
    report = enumerate_runs(scenarios.in_time(), deviations_max=1)

    assert report.failure is None, str(report.failure)
    assert report.reached["granted after a silence"]
    assert report.reached["granted after a release"]


@pytest.mark.parametrize("bug", [bug for bug in scenarios.SLOW if bug])
def test_who_looks_too_late_is_found(bug: str) -> None:
    report = enumerate_runs(scenarios.in_time(bug), deviations_max=1)

    assert report.failure is not None
    assert "I9" in str(report.failure)
