"""How slots, members and pauses are shown, and how the log explains an owner: values in, values out."""

from __future__ import annotations

import pytest

from penstock.claims.explain import Explanation, summary
from penstock.claims.look import (
    Shown,
    check_group,
    found_slot,
    members_seen,
    pauses_seen,
    slot_place,
    slot_seen,
    slots_seen,
)
from penstock.claims.placement import partition_of
from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    RangeClaimed,
    Slot,
)
from penstock.claims.state import Claims
from penstock.errors import NotFound
from penstock.ledger.codec import Record, encode
from penstock.ledger.log import Entry
from penstock.ledger.machine import ClockReset, Fold

HB = 1_000
S0, S1, LOCK = Slot("g", "t", 0), Slot("g", "t", 1), Slot("jobs", "nightly")
FOUNDED = (0, ClaimsFounded(partitions=1, heartbeat_ms=HB, window=100, delivery_limit=5))


def fold_of(*records: tuple[int, Record]) -> Fold[Claims]:
    """A fold of these records at these times, the genesis before them at offset 0."""
    fold = Fold(Claims())
    for offset, (time_ms, record) in enumerate((FOUNDED, *records)):
        fold.feed(offset, time_ms, encode(record))
    return fold


def explained(slot: Slot, *records: tuple[int, Record]) -> list[tuple[int, str, str, str, str | None, int]]:
    fold = Fold(Claims())
    explanation = Explanation(slot, fold)
    for offset, (time_ms, record) in enumerate((FOUNDED, *records)):
        value = encode(record)
        explanation.see(Entry(0, offset, time_ms, None, value), fold.feed(offset, time_ms, value))
    return [(m.offset, m.type, m.verdict, m.reason, m.owner, m.count) for m in explanation.moments()]


def beat(*slots: tuple[Slot, int], position: int | None = None) -> Heartbeat:
    return Heartbeat("a", "i1", tuple(Beat(slot, epoch, position) for slot, epoch in slots))


@pytest.mark.parametrize(
    ("age_ms", "state", "owner"),
    [
        (0, "fresh", ("a", "i1")),
        (HB - 1, "fresh", ("a", "i1")),
        (HB, "silent", ("a", "i1")),
        (2 * HB - 1, "silent", ("a", "i1")),
        (2 * HB, "free", None),
    ],
)
def test_a_slot_goes_from_fresh_to_silent_to_free(age_ms: int, state: str, owner: tuple[str, str] | None) -> None:
    folds = {0: fold_of((5_000, Claimed(S0, "a", "i1")))}

    (seen,) = slots_seen(folds, 5_000 + age_ms)

    assert (seen.state.value, seen.owner, seen.age_ms, seen.epoch) == (state, owner, age_ms, 1)
    assert seen.last_owner == ("a", "i1")


def test_a_machine_whose_clock_is_behind_does_not_turn_back_the_log() -> None:
    folds = {0: fold_of((5_000, Claimed(S0, "a", "i1")), (7_000, GroupPaused("other", "x", 0)))}

    (seen,) = slots_seen(folds, 10)

    assert (seen.state, seen.age_ms) == (Shown.FREE, 2_000)


def test_a_paused_group_is_paused_whoever_still_owns_its_slots_and_until_the_pause_ends() -> None:
    folds = {0: fold_of((5_000, Claimed(S0, "a", "i1")), (5_000, GroupPaused("g", "op", 6_000)))}

    (paused,), (after,) = slots_seen(folds, 5_999), slots_seen(folds, 6_000)

    assert (paused.state, paused.owner) == (Shown.PAUSED, ("a", "i1"))
    assert after.state is Shown.SILENT


def test_a_slot_that_was_given_back_is_free_and_keeps_its_position() -> None:
    folds = {0: fold_of((1, Claimed(S0, "a", "i1")), (2, ClaimReleased(S0, "a", "i1", 1, position=44)))}

    (seen,) = slots_seen(folds, 3)

    assert (seen.state, seen.owner, seen.last_owner, seen.position) == (Shown.FREE, None, None, 44)
    assert seen.age_ms is None


def test_a_slot_that_is_shared_in_ranges_shows_who_holds_live_ones() -> None:
    folds = {
        0: fold_of(
            (1_000, RangeClaimed(S0, "b", "i1", n=5)),
            (2_500, RangeClaimed(S0, "a", "i1", n=5)),
        )
    }

    (seen,) = slots_seen(folds, 3_200)

    assert (seen.state, seen.owner, seen.holders) == (Shown.FRESH, None, (("a", "i1"),))
    assert (seen.position, seen.frontier, seen.age_ms) == (0, 10, 700)


def test_members_are_counted_over_all_partitions_and_told_by_their_last_sign_of_life() -> None:
    folds = {
        0: fold_of((5_000, Claimed(S0, "a", "i1")), (5_000, Claimed(LOCK, "b", "i2"))),
        1: fold_of((6_500, Claimed(S1, "a", "i1"))),
    }

    found = {m.owner: (m.state, m.slots, m.groups, m.age_ms) for m in members_seen(folds, 7_100)}

    assert found == {("a", "i1"): ("fresh", 2, ("g",), 600), ("b", "i2"): ("expired", 1, ("jobs",), 2_100)}
    assert [m.owner for m in members_seen(folds, 7_100, group="jobs")] == [("b", "i2")]


def test_a_pause_tells_in_which_partitions_it_holds() -> None:
    folds = {
        0: fold_of((1, GroupPaused("g", "op", 9_000))),
        1: fold_of(),
        2: fold_of((1, GroupPaused("g", "other", 8_000)), (1, GroupPaused("h", "op", 5))),
    }

    pauses = pauses_seen(folds, 100)

    assert {group: tuple(pause) for group, pause in pauses.items()} == {"g": ("op", 9_000, (0, 2))}


def test_what_the_ledger_never_heard_of_is_not_found() -> None:
    folds = {0: fold_of((1, Claimed(S0, "a", "i1"))), 1: fold_of((1, Claimed(LOCK, "a", "i1")))}

    assert found_slot(folds, "g/t/0") == (S0, 0)
    assert found_slot(folds, "jobs/nightly") == (LOCK, 1)
    check_group(folds, "jobs")
    for unknown in ("g/t/1", "g/t", "nightly", ""):
        with pytest.raises(NotFound, match="there is no slot"):
            found_slot(folds, unknown)
    assert slot_place(folds, "g/t/1") == (S1, partition_of(S1, 2))
    assert slot_place(folds, "g/a/b") == (Slot("g", "a/b"), partition_of(Slot("g", "a/b"), 2))
    for nonsense in ("", "g", "g/", "/t/0"):
        with pytest.raises(NotFound, match="there is no slot"):
            slot_place(folds, nonsense)
    with pytest.raises(NotFound, match="there is no group x"):
        check_group(folds, "x")


def test_a_takeover_is_explained_by_the_silence_before_it() -> None:
    moments = explained(
        S0,
        (1_000, Claimed(S0, "a", "i1")),
        (1_300, beat((S0, 1), (S1, 9), position=7)),
        (1_500, Claimed(S0, "b", "i2")),
        (1_600, beat((S0, 1))),
        (1_700, Claimed(S0, "b", "i2")),
        (1_700, Claimed(S1, "b", "i2")),
        (3_600, Claimed(S0, "b", "i2")),
        (3_700, beat((S0, 1))),
    )

    assert moments == [
        (1, "claimed", "accepted", "it was free", "a/i1", 1),
        (4, "heartbeat", "accepted", "", "a/i1", 2),
        (5, "claimed", "ignored", "owned by a/i1", "a/i1", 2),
        (7, "claimed", "accepted", "a/i1 had not been heard of for 2.0 s", "b/i2", 1),
        (8, "heartbeat", "ignored", "the sender is not the owner under this epoch", "b/i2", 1),
    ]


def test_pauses_clock_resets_and_reclaims_are_part_of_the_story() -> None:
    moments = explained(
        S0,
        (1_000, Claimed(S0, "a", "i1")),
        (1_100, Claimed(S0, "a", "i2", reclaim=True)),
        (1_200, GroupPaused("g", "op", 5_000)),
        (1_200, GroupPaused("h", "op", 5_000)),
        (1_300, ClaimReleased(S0, "a", "i2", 2, position=3)),
        (1_400, Claimed(S0, "b", "i1")),
        (1_500, ClockReset("op")),
    )

    assert moments == [
        (1, "claimed", "accepted", "it was free", "a/i1", 1),
        (2, "claimed", "accepted", "it reclaimed it from its older instance i1", "a/i2", 1),
        (3, "group_paused", "accepted", "", "a/i2", 1),
        (5, "claim_released", "accepted", "", None, 1),
        (6, "claimed", "ignored", "the group is paused by op", None, 1),
        (7, "clock_reset", "accepted", "", None, 1),
    ]


def test_the_sentence_says_whose_it_is_and_why() -> None:
    claimed = (1_000, Claimed(S0, "a", "i1"))
    released = (1_100, ClaimReleased(S0, "a", "i1", 1, position=5))
    paused = (1_100, GroupPaused("g", "op", 9_000))
    ranges = (1_000, RangeClaimed(S0, "b", "i2", n=5))

    def sentence(*records: tuple[int, Record], at_ms: int = 1_500) -> str:
        fold = fold_of(*records)
        seen = slot_seen({0: fold}, S0, at_ms, partition=0)
        return summary(seen, lease_ms=fold.machine.lease_ms, paused_by="op")

    assert sentence(claimed) == "g/t/0 belongs to a/i1 under epoch 1, last heard of 0.5 s ago"
    assert sentence(claimed, at_ms=3_000) == (
        "g/t/0 is free: a/i1 (epoch 1) was last heard of 2.0 s ago, and a lease lasts 2s; whoever claims it next has it"
    )
    assert sentence(claimed, released) == "g/t/0 is free: it was given back; the last grant had epoch 1"
    assert sentence() == "g/t/0 is free: it was never granted to anybody"
    assert sentence(claimed, released, paused).endswith(
        "; its group is paused by op, and nobody else is granted anything"
    )
    assert sentence(ranges).startswith("g/t/0 is shared in ranges by b/i2; the latest grant has epoch 1")
