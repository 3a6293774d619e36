"""Queue workers when everything goes wrong: nothing is lost, no two believe in a message, only what must is buried."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from penstock.observe.events import Event, MessagesRedelivered, subscribed
from penstock.testing import queue_scenarios as scenarios
from penstock.testing.simulate import (
    Report,
    SimulationFailed,
    crash_everywhere,
    draw,
    draw_in_parallel,
    enumerate_runs,
)

PROCESSES = min(4, os.cpu_count() or 1)

SEEDS = {
    "sharing": 200,
    "handing_over": 150,
    "lasting": 70,
    "napping": 100,
    "stopping": 180,
    "ordered": 140,
    "ordered_with_claims": 60,
    "in_batches": 120,
    "under_orders": 120,
    "at_most_once": 200,
    "poison": 100,
    "poisons": 80,
    "with_snapshots": 150,
    "with_retention": 200,
    "with_clock_steps": 150,
    "with_outages": 150,
    "with_claims": 100,
    "with_full_clients": 150,
}

INTERESTING = [
    "granted in part",
    "granted after a loss",
    "acked after expiry",
    "acked by a former owner",
    "several owners at once",
    "given back without being handed out",
    "to be scanned again",
    "suspects in a group",
    "one alone",
    "killed by a message",
    "buried after a failure",
    "buried after losses",
    "a burial was copied by somebody else",
    "a copy failed",
    "could not be read again yet",
    "dropped: invisible",
    "dropped: expired",
    "dropped: deleted by retention",
    "a head was deleted",
    "stopped gracefully",
    "a record was refused",
    "a batch failed",
    "a batch answered for each",
    "ordered: Paused",
    "ordered: Resumed",
    "ordered: QueuesChanged",
    "leader away",
    "log clock stepped ahead",
    "log clock stepped back",
    "append late",
    "append twice",
    "append dropped",
    "append unacknowledged",
    "slept at queue.renewed",
    "told LeaseLost",
    "told OutcomesDropped",
    "told LedgerRebuilt",
    "told DataLost",
]

POINTS = ["queue.opened", "queue.asked", "queue.granted", "queue.told", "queue.renewed", "ledger.appended"]
"""Where a worker dies in the enumeration; those at which handlers and copies are made come on top."""


def must_hold(report: Report) -> Report:
    if report.failure is not None:
        raise report.failure
    return report


@cache
def drawn(name: str) -> Report:
    return draw_in_parallel(f"{scenarios.NAME}:{name}", range(SEEDS[name]), processes=PROCESSES)


@pytest.mark.parametrize("name", SEEDS)
def test_drawn_runs_hold(name: str) -> None:
    assert must_hold(drawn(name)).runs == SEEDS[name]


def test_the_drawn_runs_are_many_and_reach_what_matters() -> None:
    reached: Counter[str] = sum((must_hold(drawn(name)).reached for name in SEEDS), Counter())

    assert sum(SEEDS.values()) >= 2_000
    assert [state for state in INTERESTING if not reached[state]] == []


def test_every_run_of_two_owners_with_one_deviation_holds() -> None:
    report = must_hold(enumerate_runs(scenarios.pair(), deviations_max=1))

    for point in [*POINTS, "worker.processed", "worker.copied"]:
        assert report.reached[f"died at {point}"], point
        assert report.reached[f"slept at {point}"], point


def test_both_workers_may_die_at_every_crash_point() -> None:
    report = must_hold(crash_everywhere(scenarios.pair(), [*POINTS, "queue.lost"]))

    for point in [*POINTS, "queue.lost"]:
        for name in "ab":
            assert report.reached[f"{name} died at {point}, time 1"], f"{name} at {point}"


def test_a_worker_may_die_while_it_keeps_snapshots() -> None:
    report = must_hold(crash_everywhere(scenarios.with_snapshots()))

    for point in ("snapshot.part_written", "snapshot.written", "snapshot.cut_decided", "snapshot.cut"):
        assert report.reached[f"a died at {point}, time 1"], point


def test_without_faults_no_lease_is_lost_however_often_partitions_change_hands() -> None:
    report = must_hold(drawn("handing_over"))

    assert report.reached["acked by a former owner"]
    assert report.reached["stopped gracefully"]
    assert not report.reached["told LeaseLost"]


def test_every_cause_of_a_redelivery_is_told() -> None:
    told: list[Event] = []
    with subscribed(told.append):
        must_hold(draw(scenarios.sharing(), range(40)))

    causes = {event.cause for event in told if isinstance(event, MessagesRedelivered)}
    assert causes == {"retry", "released", "lease_lost", "hand_over"}


WHERE = {
    "acks_under_a_new_epoch": "lasting",
    "buries_nothing": "poison",
    "crowds_loners": "poison",
    "forgets_what_a_snapshot_gave_it": "with_snapshots",
    "goes_on_after_a_failure": "ordered",
    "hands_out_before_the_ack": "at_most_once",
    "hands_out_strays": "sharing",
    "has_no_order": "ordered",
    "keeps_parts_of_chains": "ordered",
    "keeps_strays": "ordered",
    "learns_nothing": "ordered",
    "says_things_once": "sharing",
    "copies_its_own_only": "sharing",
    "suspects_nobody": "poison",
    "hears_nothing_of_snapshots": "with_snapshots",
    "copies_before_the_verdict": "with_outages",
    "takes_unread_for_invisible": "stopping",
    "lease_from_read_back": "napping",
    "no_local_lease": "pair",
    "believes_unanswered_renewals": "pair",
    "blames_groups": "poison",
    "waits_for_nobody": "poison",
    "forgets_for_good": "ordered_with_claims",
    "charges_the_batch": "in_batches",
    "acks_the_batch": "in_batches",
    "never_halves": "in_batches",
}
"""Which scenario finds a bug; the others are found where nothing goes wrong but the owners."""


@pytest.mark.parametrize("bug", [bug for bug in scenarios.BUGS if bug])
def test_the_planted_bug_is_found(bug: str) -> None:
    scenario = getattr(scenarios, WHERE.get(bug, "handing_over"))

    report = draw(scenario(bug), range(400))

    assert report.failure is not None, f"{bug} was not found"


def test_there_are_many_planted_bugs_and_each_says_what_it_is() -> None:
    assert len(scenarios.BUGS) > 15
    assert set(WHERE) <= set(scenarios.BUGS)


def test_a_failing_seed_prints_the_command_that_replays_it() -> None:
    failure = draw(scenarios.handing_over("never_renews"), range(50)).failure
    assert isinstance(failure, SimulationFailed)

    _, *arguments = shlex.split(failure.replay)
    replayed = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)

    assert replayed.returncode == 5
    assert str(failure.violation) in replayed.stderr


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", SEEDS)
def test_many_drawn_runs_hold(name: str) -> None:
    must_hold(
        draw_in_parallel(f"{scenarios.NAME}:{name}", range(10_000, 10_000 + 10 * SEEDS[name]), processes=PROCESSES)
    )


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_many_runs_of_two_owners_with_two_deviations_hold() -> None:
    must_hold(enumerate_runs(scenarios.pair(), deviations_max=2, runs_max=30_000))
