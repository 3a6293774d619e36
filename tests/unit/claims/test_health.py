"""When a slow owner gives a slot up, and when it must not."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.claims.health import LOOKS, Pace, to_give_up
from penstock.claims.records import Slot

BUSY, CALM, THEIRS = (Slot("g", "t", number) for number in range(3))
GROWS = [(100 * look, 200 * look + 1_000) for look in range(LOOKS)]
STEADY = [(100 * look, 100 * look + 1_000) for look in range(LOOKS)]


def paces(**looks: Sequence[tuple[int, int]]) -> Pace:
    """What was seen of the slots: (position, end) at each look."""
    slots = {"busy": BUSY, "calm": CALM, "theirs": THEIRS}
    pace = Pace()
    for name, seen in looks.items():
        for position, end in seen:
            pace.observe({slots[name]: position}, {slots[name]: end})
    return pace


def test_a_slot_whose_lag_grows_goes_to_a_member_that_keeps_up() -> None:
    pace = paces(busy=GROWS, calm=STEADY, theirs=STEADY)

    assert to_give_up(pace, ours=[BUSY, CALM], others=[[THEIRS]], lag_min=1_000) == BUSY


def test_a_lone_member_never_gives_up() -> None:
    assert to_give_up(paces(busy=GROWS), ours=[BUSY], others=[], lag_min=0) is None


def test_nobody_gives_up_for_a_member_that_has_more_slots() -> None:
    pace = paces(busy=GROWS, theirs=STEADY)

    assert to_give_up(pace, ours=[BUSY], others=[[CALM, THEIRS]], lag_min=0) is None


def test_nobody_gives_up_for_a_member_that_is_behind_itself() -> None:
    pace = paces(busy=GROWS, theirs=GROWS)

    assert to_give_up(pace, ours=[BUSY], others=[[THEIRS]], lag_min=0) is None
    assert to_give_up(pace, ours=[BUSY], others=[[THEIRS], []], lag_min=0) == BUSY


def test_a_small_lag_is_no_reason() -> None:
    lag = GROWS[-1][1] - GROWS[-1][0]

    assert to_give_up(paces(busy=GROWS), ours=[BUSY], others=[[]], lag_min=lag) == BUSY
    assert to_give_up(paces(busy=GROWS), ours=[BUSY], others=[[]], lag_min=lag + 1) is None


def test_a_lag_that_fell_once_is_no_reason() -> None:
    caught_up_once = [*GROWS[:-1], (GROWS[-1][0] + 600, GROWS[-1][1])]

    assert to_give_up(paces(busy=caught_up_once), ours=[BUSY], others=[[]], lag_min=0) is None


def test_who_does_not_work_at_all_is_not_slow() -> None:
    stands = [(100, end) for _, end in GROWS]

    assert to_give_up(paces(busy=stands), ours=[BUSY], others=[[]], lag_min=0) is None


def test_a_new_owner_is_not_judged_by_what_the_former_one_did() -> None:
    pace = paces(busy=GROWS)
    pace.forget(BUSY)

    assert to_give_up(pace, ours=[BUSY], others=[[]], lag_min=0) is None


def test_the_worst_of_several_goes_first() -> None:
    worse = [(position, 3 * end) for position, end in GROWS]

    assert to_give_up(paces(busy=GROWS, calm=worse), ours=[BUSY, CALM], others=[[]], lag_min=0) == CALM
