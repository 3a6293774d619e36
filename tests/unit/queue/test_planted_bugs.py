"""A search through small worlds finds nothing wrong with the queue's machine, and every bug that is planted in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.queue.state import QueueMachine
from penstock.testing import queue_bugs, queue_grave_bugs
from penstock.testing.queue_bugs import BUGS
from penstock.testing.queue_invariants import INVARIANTS
from penstock.testing.queue_view import Transition
from penstock.testing.queue_worlds import GRAVES, LEASES, PRODUCERS, WORLDS, World, search, shortest_fault

BREAKS: dict[str, type[QueueMachine]] = {
    "refused_records_change_nothing": queue_bugs.OwnLeaseTakenAgain,
    "positions_never_go_back": queue_grave_bugs.FinishedComesBack,
    "leases_and_offsets_agree": queue_bugs.GrantsWhatWasAsked,
    "epochs_are_offsets": queue_bugs.EpochIsACounter,
    "finished_offsets_stay_finished": queue_grave_bugs.FinishedComesBack,
    "attempts_never_go_down": queue_bugs.ReleaseForgetsTheCharges,
    "charges_have_a_cause": queue_bugs.AttemptChargedAtTheTake,
    "failures_are_charged": queue_bugs.CountedReleaseIsFree,
    "losses_are_counted": queue_bugs.LossNotCounted,
    "waiting_offsets_wait": queue_bugs.WaitingGrantedEarly,
    "tokens_and_kept_copies_stay_to_the_end": queue_bugs.LossForgetsTheToken,
    "live_leases_are_left_alone": queue_bugs.UnfencedGranted,
    "leases_die_whole": queue_bugs.LeaseDiesByHalves,
    "over_is_over": queue_bugs.AckAfterTheEnd,
    "only_leased_offsets_are_acked": queue_bugs.AckFinishesAllItNames,
    "late_words_count_until_it_is_over": queue_bugs.LateAckRefused,
    "only_its_worker_renews": queue_bugs.RenewedByAnybody,
    "nothing_is_granted_in_a_pause": queue_bugs.PauseIgnored,
    "what_is_free_is_granted": queue_bugs.AllOrNothing,
    "buried_offsets_wait_for_their_copy": queue_bugs.BuriedGrantedAgain,
    "burials_are_not_yet_finished": queue_grave_bugs.PositionPassesBuried,
    "dead_letters_come_by_copies_and_go_by_redrives": queue_grave_bugs.RedrivenTwice,
    "positions_stand_at_the_first_unfinished": queue_bugs.PositionIsTheHighest,
}
LEASE_LANDMARKS = {
    "partial grant",
    "grant after expiry",
    "partial re-grant",
    "grant when it is due",
    "refused before it is due",
    "late ack after expiry",
    "late renewal after expiry",
    "late ack after a partial re-grant",
    "ack by a zombie",
    "release by a zombie",
    "renewal by a zombie",
    "dropped out of an expired lease",
}
PRODUCER_LANDMARKS = {"fenced", "refused before the fence", "grant after a fence", "burial by a zombie"}
GRAVE_LANDMARKS = {"burial by a zombie", "position passes at the copy", "partial re-grant"}


@pytest.mark.parametrize(
    ("world", "depth", "landmarks"),
    [
        (LEASES, 4, LEASE_LANDMARKS),
        (PRODUCERS, 5, PRODUCER_LANDMARKS | {"late ack after a partial re-grant"}),
        (GRAVES, 4, GRAVE_LANDMARKS),
        pytest.param(LEASES, 5, LEASE_LANDMARKS, marks=pytest.mark.long),
        pytest.param(PRODUCERS, 7, PRODUCER_LANDMARKS, marks=pytest.mark.long),
        pytest.param(GRAVES, 5, GRAVE_LANDMARKS, marks=pytest.mark.long),
    ],
    ids=lambda value: value.name if isinstance(value, World) else None,
)
def test_the_machine_does_no_wrong_on_any_log_of_a_small_world(world: World, depth: int, landmarks: set[str]) -> None:
    seen = search(world, depth_max=depth)

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    assert seen.depth == depth
    assert {name for name in landmarks if seen.landmarks[name] < 2} == set()


@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_is_found(bug: type[QueueMachine]) -> None:
    assert shortest_fault(bug, worlds=WORLDS) is not None


def test_no_bug_is_left_out() -> None:
    assert len(BUGS) >= 15
    named = [
        value
        for module in (queue_bugs, queue_grave_bugs)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, QueueMachine) and value is not QueueMachine
    ]
    assert set(named) == set(BUGS)


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: str(invariant.__name__))
def test_every_invariant_can_be_broken(invariant: Callable[[Transition], Iterator[str]]) -> None:
    def alone(seen: Transition) -> str | None:
        return next(iter(invariant(seen)), None)

    assert shortest_fault(BREAKS[invariant.__name__], worlds=WORLDS, check=alone) is not None


def test_the_way_to_a_fault_is_the_shortest() -> None:
    fault = shortest_fault(queue_bugs.LeaseDiesByHalves, worlds=(LEASES,))

    assert fault is not None
    assert len(fault.path) == 3
    assert "leases_die_whole" in str(fault)
