"""A search through small worlds finds nothing wrong with the machine, and every bug that is planted in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.claims.records import Slot
from penstock.claims.state import Claims
from penstock.testing import claims_bugs, claims_range_bugs
from penstock.testing.claims_bugs import BUGS, OWNER_BUGS
from penstock.testing.claims_invariants import INVARIANTS
from penstock.testing.claims_range_bugs import RANGE_BUGS
from penstock.testing.claims_view import Setting, Transition
from penstock.testing.claims_worlds import GRAVES, OWNERS, RANGES, WORLDS, World, search, shortest_fault

BREAKS: dict[str, type[Claims]] = {
    "refused_records_change_nothing": claims_bugs.ClaimOverridesValidOwner,
    "epochs_never_go_down": claims_bugs.ReleaseForgetsTheEpoch,
    "epochs_are_offsets": claims_bugs.EpochIsACounter,
    "owners_change_only_with_a_larger_epoch": claims_bugs.HeartbeatGrants,
    "valid_owners_are_left_alone": claims_bugs.ReclaimByAnotherClient,
    "positions_go_back_only_by_reset": claims_bugs.HeartbeatMovesBack,
    "cells_cover_position_to_frontier": claims_range_bugs.IslandsNotSkipped,
    "positions_stand_before_something_unfinished": claims_range_bugs.FinishedPrefixStays,
    "live_ranges_and_a_live_owner_never_meet": claims_range_bugs.RangeBesideAnOwner,
    "live_cells_are_left_alone": claims_range_bugs.LiveRangeFenced,
    "epochs_of_ranges_end_whole": claims_range_bugs.RangeEpochDiesByHalves,
    "finished_cells_stay_finished": claims_range_bugs.ClaimForgetsIslands,
    "frontiers_stay_within_the_window": claims_range_bugs.FrontierBeyondWindow,
    "producers_leave_only_when_listed": claims_bugs.GrantForgetsProducers,
    "ranges_are_not_granted_beside_unfenced_producers": claims_range_bugs.UnfencedRangeGranted,
    "expired_leases_do_not_come_back_after_a_grant": claims_range_bugs.ClaimLeavesRangesAlive,
}
OWNER_LANDMARKS = {
    "takeover after expiry",
    "late heartbeat after expiry",
    "stale epoch refused",
    "reclaim fences the older instance",
    "claim inherits two producers",
    "producers fenced by the owner",
    "intent dropped by a grant",
    "intent dropped by the commit",
    "reset moves the position back",
    "refused during a pause",
    "fenced before a later grant, refused",
}
RANGE_LANDMARKS = {
    "range taken from an expired holder",
    "lost range granted again in a smaller piece",
    "late ack after expiry",
    "stale ack refused",
    "position skips a done island",
    "claim over a done island",
    "claim inherits the producer of a range",
    "range fenced",
    "range ends an expired tenure",
    "range refused beside a producer",
    "refused during a pause",
}


@pytest.mark.parametrize(
    ("world", "depth", "landmarks"),
    [
        (OWNERS, 5, OWNER_LANDMARKS),
        (RANGES, 4, RANGE_LANDMARKS),
        (GRAVES, 4, RANGE_LANDMARKS | {"granted to be buried", "burial"}),
        pytest.param(OWNERS, 7, OWNER_LANDMARKS, marks=pytest.mark.long),
        pytest.param(RANGES, 5, RANGE_LANDMARKS, marks=pytest.mark.long),
        pytest.param(GRAVES, 6, RANGE_LANDMARKS | {"burial"}, marks=pytest.mark.long),
    ],
    ids=lambda value: value.name if isinstance(value, World) else None,
)
def test_the_machine_does_no_wrong_on_any_log_of_a_small_world(world: World, depth: int, landmarks: set[str]) -> None:
    seen = search(world, depth_max=depth)

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    assert seen.depth == depth
    assert {name for name in landmarks if seen.landmarks[name] < 2} == set()


@pytest.mark.parametrize("bug", OWNER_BUGS)
def test_every_planted_bug_of_whole_slots_is_found(bug: type[Claims]) -> None:
    assert shortest_fault(bug, worlds=(OWNERS,)) is not None


@pytest.mark.parametrize("bug", RANGE_BUGS)
def test_every_planted_bug_of_ranges_is_found(bug: type[Claims]) -> None:
    assert shortest_fault(bug, worlds=(RANGES, GRAVES)) is not None


def test_no_bug_is_left_out() -> None:
    assert len(BUGS) >= 15
    named = [
        value
        for module in (claims_bugs, claims_range_bugs)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Claims) and value is not Claims
    ]
    assert set(named) == set(BUGS)


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: str(invariant.__name__))
def test_every_invariant_can_be_broken(invariant: Callable[[Transition, Setting], Iterator[str]]) -> None:
    def alone(seen: Transition, setting: Setting, slot: Slot) -> str | None:
        return next(iter(invariant(seen, setting)), None)

    assert shortest_fault(BREAKS[invariant.__name__], worlds=WORLDS, check=alone) is not None


def test_the_way_to_a_fault_is_the_shortest() -> None:
    fault = shortest_fault(claims_bugs.HeartbeatMovesBack, worlds=(OWNERS,))

    assert fault is not None
    assert len(fault.path) == 3
    assert "positions_go_back_only_by_reset" in str(fault)
