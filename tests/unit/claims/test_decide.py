"""What a member asks for first, and gives back first."""

from __future__ import annotations

import pytest

from penstock.claims.decide import Appetite, Share, counted, lead_of, richest, share
from penstock.claims.naming import name_slot, ordinal_name, this_host
from penstock.claims.records import Slot
from penstock.claims.terms import Terms
from penstock.errors import UsageError
from penstock.values import checked_name

SLOTS = [Slot("g", "t", number) for number in range(6)]


@pytest.mark.parametrize(
    ("slots", "members", "fair"), [(6, 2, (3, 3)), (7, 2, (3, 4)), (1, 3, (0, 1)), (0, 3, (0, 0)), (5, 0, (5, 5))]
)
def test_shares_differ_by_one_at_most(slots: int, members: int, fair: tuple[int, int]) -> None:
    assert share(slots, members) == Share(*fair)


def test_members_that_begin_together_do_not_ask_for_the_same_first() -> None:
    firsts = {Appetite().first_come(SLOTS, f"member-{number}")[0] for number in range(20)}

    assert len(firsts) > 3


def test_the_order_of_asking_is_the_same_every_time() -> None:
    assert Appetite().first_come(SLOTS, "a") == Appetite().first_come(reversed(SLOTS), "a")


def test_preferred_slots_are_asked_for_first_and_given_back_last() -> None:
    prefers = Appetite(prefers=lambda slot: slot.partition in (2, 4))

    assert set(prefers.first_come(SLOTS, "a")[:2]) == {SLOTS[2], SLOTS[4]}
    assert prefers.first_gone([SLOTS[2], SLOTS[3]], {SLOTS[2]: 0, SLOTS[3]: 9}) == SLOTS[3]


def test_what_was_taken_last_is_not_what_goes_first() -> None:
    assert Appetite().first_gone(SLOTS[:2], {SLOTS[0]: 5, SLOTS[1]: 1}) == SLOTS[1]


def test_whole_topics_are_counted_by_their_partition_0_and_the_rest_follows_in_order() -> None:
    whole = Appetite(whole_topics=True)
    both = [Slot("g", topic, number) for topic in "tu" for number in range(3)]

    asked = whole.first_come(both, "a")

    assert [slot for slot in asked if whole.is_unit(slot)] == [asked[0], asked[3]]
    assert [slot.partition for slot in asked] == [0, 1, 2, 0, 1, 2]
    assert lead_of(asked[2]) == asked[0]
    assert all(Appetite().is_unit(slot) for slot in both)


def test_a_lock_is_a_unit_of_its_own() -> None:
    assert Appetite(whole_topics=True).is_unit(Slot("g", "nightly"))


def test_who_has_most_is_asked() -> None:
    counts = counted([("a", "1"), None, ("b", "1"), ("b", "1")])

    assert richest(counts, but=("c", "1")) == ("b", "1")
    assert richest(counts, but=("b", "1")) == ("a", "1")
    assert richest({}, but=("a", "1")) is None


def test_no_group_or_lock_of_users_can_be_called_like_the_names_of_members() -> None:
    slot = name_slot("shop", ordinal_name(this_host(), 3))

    assert checked_name("client", slot.topic).endswith("-3")
    with pytest.raises(UsageError):
        checked_name("group", slot.group)


def test_preferences_hold_for_every_topic_or_by_topic() -> None:
    everywhere = Terms(topics=("t", "u"), prefer=[1]).appetite(give_up_lag=0)
    in_one = Terms(topics=("t", "u"), prefer={"u": [1]}).appetite(give_up_lag=0)

    assert [everywhere.prefers(Slot("g", topic, 1)) for topic in "tu"] == [True, True]
    assert [in_one.prefers(Slot("g", topic, 1)) for topic in "tu"] == [False, True]


@pytest.mark.parametrize("prefer", [5, "01", {"t": 1}, [None]])
def test_wrong_preferences_are_told(prefer: object) -> None:
    with pytest.raises(UsageError, match=r"write prefer=\[0, 3\]"):
        Terms(topics=("t",), prefer=prefer)  # type: ignore[arg-type]


def test_a_wrong_way_of_claiming_is_told() -> None:
    with pytest.raises(UsageError, match="is no claim"):
        Terms(topics=("t",), claim="everything")  # type: ignore[arg-type]
