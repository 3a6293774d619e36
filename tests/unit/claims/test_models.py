"""What members do around a claim: every interleaving holds with the rules, and breaks with each known shortcut."""

from __future__ import annotations

import pytest

from penstock.claims.state import Claims
from penstock.testing.claims_bugs import (
    FencedBeforeALaterGrant,
    GrantForgetsProducers,
    HeartbeatReplacesProducers,
    TokensComeAgain,
)
from penstock.testing.claims_models import Shortcut, Step, TransactionalMember, TransactionalModel
from penstock.testing.claims_positions import Delivery, Haste, Member, PositionModel
from penstock.testing.claims_tokens import Laxity, TokenModel
from penstock.testing.explore import Move, explore

THREE = tuple(TransactionalMember(client, "1") for client in "abc")
THREE_AND_A_RESTART = (
    TransactionalMember("a", "1", lives_left=1, beats_left=0),
    TransactionalMember("b", "1", beats_left=0),
    TransactionalMember("c", "1", beats_left=0),
)
TWO_AND_A_SWEEPER = (
    TransactionalMember("a", "1", lives_left=1),
    TransactionalMember("b", "1", beats_left=0),
    TransactionalMember("y", "1", step=Step.LOOK),
)
ONE_IN_TWO_PROCESSES = (
    TransactionalMember("a", "1", beats_left=0),
    TransactionalMember("a", "2", beats_left=0),
    TransactionalMember("b", "1", beats_left=0),
)


# Exactly once


@pytest.mark.parametrize(
    ("members", "messages"),
    [
        (THREE, 1),
        (ONE_IN_TWO_PROCESSES, 2),
        (TWO_AND_A_SWEEPER, 1),
        pytest.param(THREE_AND_A_RESTART, 1, marks=pytest.mark.long),
        pytest.param(THREE, 3, marks=pytest.mark.long),
    ],
    ids=["three", "one client in two processes", "two and a sweeper", "three and a restart", "three messages"],
)
def test_transactional_takeover_is_exactly_once(members: tuple[TransactionalMember, ...], messages: int) -> None:
    seen = TransactionalModel(*members, messages=messages).search()

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    assert seen.landmarks["commit"] > 0
    assert seen.landmarks["commit after the loss, before the fence"] > 0
    assert seen.landmarks["commit refused to a fenced producer"] > 0
    assert seen.landmarks["lost while fencing"] > 0
    claimers = {member.client for member in members if member.step is not Step.LOOK}
    assert (seen.landmarks["granted with two others to fence"] > 0) == (len(claimers) > 2)
    # Whoever tells what it fenced names the epoch that it had read first; then it need not look again.
    has_sweeper = any(member.step is Step.LOOK for member in members)
    assert (seen.landmarks["swept too late"] > 0) == (seen.landmarks["swept"] > 0) == has_sweeper


@pytest.mark.parametrize(
    "shortcut",
    [
        Shortcut.ANNOUNCES_BEFORE_INITIALISING,
        Shortcut.FENCES_ONLY_THE_LAST,
        Shortcut.FENCES_NOBODY,
        Shortcut.TAKES_OFFSETS_BEFORE_FENCING,
    ],
)
def test_a_hasty_takeover_commits_twice(shortcut: Shortcut) -> None:
    fault = TransactionalModel(*THREE, messages=1, shortcut=shortcut).search().fault

    assert fault is not None
    assert "not exactly once" in fault.violation


@pytest.mark.parametrize("machine", [HeartbeatReplacesProducers, GrantForgetsProducers])
def test_a_machine_that_forgets_a_producer_commits_twice(machine: type[Claims]) -> None:
    fault = TransactionalModel(*THREE, messages=1, machine=machine).search().fault

    assert fault is not None
    assert "not exactly once" in fault.violation


def test_two_members_are_too_few_to_find_that_only_the_last_is_fenced() -> None:
    """Why the search has three: one has a transaction open, one died before it fenced, one fences."""
    seen = TransactionalModel(*THREE[:2], messages=2, shortcut=Shortcut.FENCES_ONLY_THE_LAST).search()

    assert seen.fault is None


def test_who_does_not_read_on_after_an_initialisation_goes_on_fencing_the_rightful_owner() -> None:
    fault = TransactionalModel(*THREE_AND_A_RESTART, messages=1, shortcut=Shortcut.DOES_NOT_READ_ON).search().fault

    assert fault is not None
    assert "goes on fencing" in fault.violation


@pytest.mark.parametrize(
    ("shortcut", "machine"),
    [
        (Shortcut.SWEEPS_WITHOUT_THE_EPOCH, Claims),
        (Shortcut.SWEEPS_WITH_THE_EPOCH_OF_AFTERWARDS, Claims),
        (None, FencedBeforeALaterGrant),
    ],
)
def test_who_tells_of_fenced_producers_without_that_epoch_lets_two_commit(
    shortcut: Shortcut | None, machine: type[Claims]
) -> None:
    fault = TransactionalModel(*TWO_AND_A_SWEEPER, messages=1, shortcut=shortcut, machine=machine).search().fault

    assert fault is not None
    assert "not exactly once" in fault.violation


# At most once, at least once


@pytest.mark.parametrize("delivery", Delivery)
def test_two_members_keep_the_promise_in_every_interleaving(delivery: Delivery) -> None:
    seen = PositionModel(delivery, Member("a"), Member("b")).search()

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    for landmark in ("takeover", "late commit accepted", "commit refused after the loss", "processed after the loss"):
        assert seen.landmarks[landmark] > 0, landmark
    assert seen.landmarks["crash between commit and processing"] > 0


@pytest.mark.parametrize(
    "haste",
    [Haste.PROCESSES_BEFORE_THE_READ_BACK, Haste.PROCESSES_ON_A_REFUSED_COMMIT, Haste.POSITION_OF_BEFORE_THE_GRANT],
)
def test_haste_processes_twice(haste: Haste) -> None:
    fault = PositionModel(Delivery.AT_MOST_ONCE, Member("a"), Member("b"), haste=haste).search().fault

    assert fault is not None
    assert "processed twice" in fault.violation


def test_who_commits_first_skips() -> None:
    model = PositionModel(Delivery.AT_LEAST_ONCE, Member("a"), Member("b"), haste=Haste.COMMITS_BEFORE_PROCESSING)

    fault = model.search().fault

    assert fault is not None
    assert "skipped" in fault.violation


# Tokens


@pytest.mark.parametrize("clients", ["ab", "abc"])
def test_a_resource_that_checks_the_token_takes_nothing_from_a_former_owner(clients: str) -> None:
    seen = TokenModel(*clients).search()

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    for landmark in ("accepted", "accepted after the loss", "a former owner's effect is refused", "released"):
        assert seen.landmarks[landmark] > 0, landmark


@pytest.mark.parametrize("laxity", Laxity)
def test_a_lax_resource_takes_an_effect_of_a_former_owner(laxity: Laxity) -> None:
    fault = TokenModel(*"ab", laxity=laxity).search().fault

    assert fault is not None
    assert "I7" in fault.violation


def test_tokens_that_come_again_let_a_former_owner_in() -> None:
    fault = TokenModel(*"abc", machine=TokensComeAgain).search().fault

    assert fault is not None
    assert "I7" in fault.violation


# The search itself


def test_the_search_finds_the_shortest_way_and_visits_a_state_once() -> None:
    def steps(number: int) -> list[Move[int]]:
        return [Move(f"+{step}", (number + step) % 12) for step in (1, 5)]

    found = explore(0, steps, lambda number: "six" if number == 6 else None, key=lambda number: number)
    whole = explore(0, steps, key=lambda number: number)

    assert found.fault is not None
    assert found.fault.path == ("+1", "+5")
    assert (whole.states, whole.moves, whole.fault) == (12, 24, None)


def test_the_search_says_when_it_left_something_out() -> None:
    seen = explore(0, lambda number: [Move("+1", number + 1)], key=lambda number: number, states_max=10)

    assert not seen.is_complete
