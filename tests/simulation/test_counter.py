"""The simulator on the example machine: the rules hold, and every planted bug is found."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from penstock.testing import counter_scenarios, snapshot_scenarios
from penstock.testing.simulate import (
    Report,
    SimulationFailed,
    draw,
    enumerate_runs,
    find_scenario,
    run_deviations,
    run_seed,
)

SEEDS = 400

SCENARIOS = {
    "counter": counter_scenarios.counter,
    "counter_with_clock_steps": counter_scenarios.counter_with_clock_steps,
    "counter_in_transactions": counter_scenarios.counter_in_transactions,
    "snapshots": snapshot_scenarios.snapshots,
}


def must_hold(report: Report) -> Report:
    if report.failure is not None:
        raise report.failure
    return report


@pytest.mark.parametrize("name", SCENARIOS)
def test_drawn_runs_hold(name: str) -> None:
    assert must_hold(draw(SCENARIOS[name](), range(SEEDS))).runs == SEEDS


def test_every_run_of_the_counter_with_one_deviation_holds_and_reaches_what_matters() -> None:
    report = must_hold(enumerate_runs(counter_scenarios.counter(), deviations_max=1))

    assert report.runs > 300
    for state in (
        "lease taken over after expiry",
        "died at ledger.appended",
        "slept at ledger.appended",
        "died at counter.asked",
        "append late",
        "append twice",
        "append unacknowledged",
        "append dropped",
    ):
        assert report.reached[state], state


def test_every_run_with_transactions_and_one_deviation_holds_and_reaches_what_matters() -> None:
    report = must_hold(enumerate_runs(counter_scenarios.counter_in_transactions(), deviations_max=1))

    for state in (
        "commit fenced",
        "commit unknown, committed",
        "commit unknown, open",
        "died at ledger.appended_in_transaction",
        "died at counter.committed",
    ):
        assert report.reached[state], state


def test_every_run_with_snapshots_and_one_deviation_holds_and_reaches_what_matters() -> None:
    report = must_hold(enumerate_runs(snapshot_scenarios.snapshots(), deviations_max=1))

    assert report.reached["opened a ledger that was cut"]
    for point in (
        "snapshot.part_written",
        "snapshot.written",
        "snapshot.cut_decided",
        "snapshot.cut",
        "snapshot.tombstones_written",
    ):
        assert report.reached[f"died at {point}"], point
        assert report.reached[f"slept at {point}"], point


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", ["counter", "counter_in_transactions", "snapshots"])
def test_the_first_runs_with_two_deviations_hold(name: str) -> None:
    """All of them are about a hundred thousand; these are the ones whose first deviation comes early."""
    assert must_hold(enumerate_runs(SCENARIOS[name](), deviations_max=2, runs_max=10_000)).runs == 10_000


PLANTED = [
    *(("counter", bug) for bug in counter_scenarios.COUNTER_BUGS if bug),
    *(("counter_in_transactions", bug) for bug in counter_scenarios.TRANSACTION_BUGS if bug),
    *(("snapshots", bug) for bug in snapshot_scenarios.SNAPSHOT_BUGS if bug),
]


@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_enumeration_finds_the_planted_bug_and_says_how_to_see_it_again(name: str, bug: str) -> None:
    report = enumerate_runs(SCENARIOS[name](bug), deviations_max=2, runs_max=5_000)

    assert report.failure is not None, f"{bug} was not found in {report.runs} runs"
    command = shlex.split(report.failure.replay)
    assert command[:3] == ["python", "-m", "penstock.testing.simulate"]
    assert command[3].endswith(f":{name}({bug})")
    pairs = [pair.split(":") for pair in command[-1].split(",") if ":" in pair]
    with pytest.raises(SimulationFailed) as again:
        run_deviations(find_scenario(command[3]), {int(number): int(option) for number, option in pairs})
    assert again.value.trace == report.failure.trace


def test_same_seed_same_trace_in_another_process_with_another_hash_seed() -> None:
    def trace(hash_seed: str) -> bytes:
        command = [
            sys.executable,
            "-m",
            "penstock.testing.simulate",
            "penstock.testing.snapshot_scenarios:snapshots",
            "--seed",
            "17",
        ]
        return subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True
        ).stdout

    here = "\n".join(run_seed(snapshot_scenarios.snapshots(), 17).trace).encode() + b"\n"

    assert len(here) > 1_000
    assert trace("1") == trace("2") == here


def test_a_failing_run_exits_5_and_names_the_invariant() -> None:
    command = [
        sys.executable,
        "-m",
        "penstock.testing.simulate",
        "penstock.testing.counter_scenarios:counter(acts_before_read_back)",
        "--seeds",
        "3",
    ]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 5
    assert "both act as the holder" in done.stderr
    assert "replay: python -m penstock.testing.simulate" in done.stderr
