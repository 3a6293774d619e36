"""Every rule of the claims machine by example: whole slots."""

from __future__ import annotations

import pytest

from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    Intended,
    ProducersFenced,
    Slot,
)
from penstock.claims.state import Claims, SlotState
from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, Kind, Verdict

HB_MS = 1_000
LEASE_MS = 2 * HB_MS
SLOT = Slot("g", "t", 0)
OTHER = Slot("g", "t", 1)
A, A2, B, C = ("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")


class Log:
    """A founded log: the genesis is at offset 0, the first record after it at 1."""

    def __init__(self, *records: tuple[int, Record], log_start: int = 0) -> None:
        self.fold = Fold(Claims(log_start=log_start))
        if log_start:
            self.fold.found(ClaimsFounded(1, HB_MS, 10, 2))
            self.fold.next_offset = log_start
        else:
            self.write(0, ClaimsFounded(partitions=1, heartbeat_ms=HB_MS, window=10, delivery_limit=2))
        for time_ms, record in records:
            assert self.write(time_ms, record).kind is not Kind.IGNORED, record

    def write(self, time_ms: int, record: Record) -> Verdict:
        return self.fold.feed(self.fold.next_offset, time_ms, encode(record)).verdict

    @property
    def slot(self) -> SlotState:
        return self.fold.machine.slot(SLOT)


def beat(
    member: tuple[str, str],
    epoch: int,
    position: int | None = None,
    *,
    producer: str | None = None,
    fenced: tuple[str, ...] = (),
    slot: Slot = SLOT,
) -> Heartbeat:
    return Heartbeat(*member, (Beat(slot, epoch, position, producer, fenced),))


def assert_refused(log: Log, time_ms: int, record: Record, reason: str) -> None:
    """It is ignored, says why, and changes nothing but the clock."""
    before = log.fold.machine.dump()
    verdict = log.write(time_ms, record)
    assert verdict.kind is Kind.IGNORED
    assert reason in verdict.reason
    assert log.fold.machine.dump() == before


# Claimed


def test_a_claim_on_a_new_slot_is_granted_under_its_own_offset() -> None:
    log = Log((5, Claimed(SLOT, *A, producer="pa")))

    assert (log.slot.owner, log.slot.epoch, log.slot.renewed_ms) == (A, 1, 5)
    assert log.slot.position is None
    assert log.slot.producers == {"pa"}


def test_a_claim_is_refused_while_another_owner_is_valid() -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, LEASE_MS - 1, Claimed(SLOT, *B), "owned by a/1")


def test_an_owner_is_valid_for_less_than_two_heartbeats() -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert log.write(LEASE_MS, Claimed(SLOT, *B)).is_accepted
    assert (log.slot.owner, log.slot.epoch) == (B, 2)


def test_a_claim_counts_from_the_log_clock_and_not_from_its_own_time() -> None:
    log = Log((5_000, Claimed(SLOT, *A)))

    assert_refused(log, 0, Claimed(SLOT, *B), "owned by a/1")
    assert log.fold.clock_ms == 5_000


def test_the_valid_owner_claims_without_any_change() -> None:
    log = Log((0, Claimed(SLOT, *A, producer="pa")))
    before = log.fold.machine.dump()

    assert log.write(100, Claimed(SLOT, *A, producer="other")).kind is Kind.UNCHANGED
    assert log.fold.machine.dump() == before


def test_an_expired_owner_that_claims_again_gets_a_new_epoch() -> None:
    log = Log((0, Claimed(SLOT, *A)), (LEASE_MS, Claimed(SLOT, *A)))

    assert log.slot.epoch == 2


def test_another_instance_of_the_same_client_is_somebody_else() -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 1, Claimed(SLOT, *A2), "owned by a/1")


def test_reclaim_takes_the_slot_from_the_older_instance_and_fences_it() -> None:
    log = Log((0, Claimed(SLOT, *A)), (1, Claimed(SLOT, *A2, reclaim=True)))

    assert (log.slot.owner, log.slot.epoch) == (A2, 2)
    assert_refused(log, 2, beat(A, 1), "not the owner")


def test_reclaim_is_refused_to_another_client() -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 1, Claimed(SLOT, *B, reclaim=True), "owned by a/1")


@pytest.mark.parametrize("expects", [-1, 0, 2])
def test_a_claim_that_expects_another_epoch_is_refused(expects: int) -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, LEASE_MS, Claimed(SLOT, *B, expects=expects), "epoch is 1")


def test_a_claim_that_expects_the_slots_epoch_is_granted() -> None:
    log = Log((0, Claimed(SLOT, *A, expects=-1)), (LEASE_MS, Claimed(SLOT, *B, expects=1)))

    assert log.slot.owner == B


def test_expects_is_asked_of_the_valid_owner_too() -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 1, Claimed(SLOT, *A, expects=0), "epoch is 1")


def test_a_grant_keeps_the_position_drops_the_intent_and_adds_its_producer() -> None:
    log = Log(
        (0, Claimed(SLOT, *A, producer="pa")),
        (1, beat(A, 1, 7)),
        (1, Intended(SLOT, *A, 1, 9)),
        (1 + LEASE_MS, Claimed(SLOT, *B, producer="pb")),
    )

    assert log.slot.position == 7
    assert log.slot.intent is None
    assert log.slot.producers == {"pa", "pb"}


def test_a_third_owner_inherits_the_producers_of_both_before_it() -> None:
    log = Log(
        (0, Claimed(SLOT, *A, producer="pa")),
        (LEASE_MS, Claimed(SLOT, *B, producer="pb")),
        (2 * LEASE_MS, Claimed(SLOT, *C, producer="pc")),
    )

    assert log.slot.producers == {"pa", "pb", "pc"}


def test_slots_do_not_know_each_other() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, Claimed(OTHER, *B)), (0, Claimed(Slot("g", "t"), *C)))

    assert log.slot.owner == A
    assert log.fold.machine.slot(OTHER).owner == B


def test_a_refused_question_about_an_unknown_slot_leaves_no_trace() -> None:
    log = Log()

    assert_refused(log, 0, Claimed(SLOT, *A, expects=5), "epoch is -1")
    assert_refused(log, 0, beat(A, 0), "not the owner")
    assert log.fold.machine.slots == {}


# Pauses


def test_nobody_else_is_granted_anything_in_a_paused_group() -> None:
    log = Log((0, GroupPaused("g", "ops", 500)))

    assert_refused(log, 499, Claimed(SLOT, *A), "paused by ops")


def test_who_paused_a_group_may_claim_in_it() -> None:
    log = Log((0, GroupPaused("g", "a", 500)), (1, Claimed(SLOT, *A)))

    assert log.slot.owner == A


def test_a_pause_ends_when_the_log_clock_reaches_it() -> None:
    log = Log((0, GroupPaused("g", "ops", 500)), (500, Claimed(SLOT, *A)))

    assert log.slot.owner == A


def test_the_last_pause_wins_also_when_it_is_shorter() -> None:
    log = Log((0, GroupPaused("g", "ops", 500)), (1, GroupPaused("g", "b", 100)), (50, Claimed(SLOT, *B)))
    assert_refused(log, 60, Claimed(OTHER, *A), "paused by b")
    assert log.write(100, Claimed(OTHER, *A)).is_accepted


def test_a_pause_until_now_resumes_the_group() -> None:
    log = Log((0, GroupPaused("g", "ops", 500)), (1, GroupPaused("g", "ops", 0)), (1, Claimed(SLOT, *A)))

    assert log.slot.owner == A


def test_a_pause_leaves_other_groups_and_present_owners_alone() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, GroupPaused("g", "ops", 500)))

    assert log.write(1, beat(A, 1, 4)).is_accepted
    assert log.write(1, Claimed(Slot("h", "t", 0), *B)).is_accepted
    assert log.write(1, ClaimReleased(SLOT, *A, 1, 5)).is_accepted


# Heartbeat


def test_a_heartbeat_renews_from_the_log_clock() -> None:
    log = Log((0, Claimed(SLOT, *A)), (LEASE_MS - 1, beat(A, 1)))

    assert_refused(log, 2 * LEASE_MS - 2, Claimed(SLOT, *B), "owned by a/1")
    assert log.write(2 * LEASE_MS - 1, Claimed(SLOT, *B)).is_accepted


@pytest.mark.parametrize(("given", "position"), [(None, 5), (3, 5), (5, 5), (8, 8)])
def test_a_heartbeat_never_moves_the_position_back(given: int | None, position: int) -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, beat(A, 1, 5)), (0, beat(A, 1, given)))

    assert log.slot.position == position


def test_an_unset_position_is_not_zero() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, beat(A, 1)))
    assert log.slot.position is None

    log.write(0, beat(A, 1, 0))
    assert log.slot.position == 0


@pytest.mark.parametrize(("member", "epoch"), [(B, 1), (A2, 1), (A, 0), (A, 2), (A, -1)])
def test_a_heartbeat_of_another_member_instance_or_epoch_is_refused(member: tuple[str, str], epoch: int) -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 1, beat(member, epoch, 99, producer="p"), "not the owner")


def test_a_late_heartbeat_is_accepted_as_long_as_nobody_else_was_granted() -> None:
    log = Log((0, Claimed(SLOT, *A)), (10 * LEASE_MS, beat(A, 1, 3)))

    assert log.slot.position == 3
    assert_refused(log, 10 * LEASE_MS + 1, Claimed(SLOT, *B), "owned by a/1")


def test_a_late_heartbeat_is_refused_once_somebody_else_was_granted() -> None:
    log = Log((0, Claimed(SLOT, *A)), (LEASE_MS, Claimed(SLOT, *B)))

    assert_refused(log, LEASE_MS + 1, beat(A, 1, 3), "not the owner")


def test_a_heartbeat_never_grants() -> None:
    log = Log((0, Claimed(SLOT, *A)), (1, ClaimReleased(SLOT, *A, 1)))

    assert_refused(log, 2, beat(A, 1), "not the owner")
    assert_refused(log, 2, beat(A, log.fold.next_offset), "not the owner")
    assert log.slot.owner is None


def test_a_heartbeat_takes_away_what_it_lists_and_adds_its_own_producer() -> None:
    log = Log(
        (0, Claimed(SLOT, *A, producer="pa")),
        (LEASE_MS, Claimed(SLOT, *B, producer="pb")),
        (2 * LEASE_MS, Claimed(SLOT, *C, producer="pc")),
        (2 * LEASE_MS, beat(C, 3, fenced=("pa", "unknown"))),
    )
    assert log.slot.producers == {"pb", "pc"}

    log.write(2 * LEASE_MS, beat(C, 3, producer="pd", fenced=("pb",)))
    assert log.slot.producers == {"pc", "pd"}


def test_a_heartbeat_with_nothing_fenced_forgets_nobody() -> None:
    log = Log(
        (0, Claimed(SLOT, *A, producer="pa")),
        (LEASE_MS, Claimed(SLOT, *B, producer="pb")),
        (LEASE_MS, beat(B, 2, producer="pb")),
    )

    assert log.slot.producers == {"pa", "pb"}


def test_a_producer_that_is_fenced_and_named_stays() -> None:
    log = Log((0, Claimed(SLOT, *A, producer="pa")), (0, beat(A, 1, producer="pa", fenced=("pa",))))

    assert log.slot.producers == {"pa"}


def test_one_heartbeat_carries_many_slots_with_one_verdict_each() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, Claimed(OTHER, *B)))

    verdict = log.write(5, Heartbeat(*A, (Beat(SLOT, 1, 3), Beat(OTHER, 2, 4))))

    assert verdict.kind is Kind.PARTIAL
    assert [part.kind for part in verdict.parts] == [Kind.ACCEPTED, Kind.IGNORED]
    assert log.slot.position == 3
    assert log.fold.machine.slot(OTHER).position is None


def test_a_heartbeat_without_slots_is_ignored() -> None:
    assert Log().write(0, Heartbeat(*A, ())).kind is Kind.IGNORED


# ClaimReleased


def test_a_release_frees_the_slot_at_once_and_keeps_its_position() -> None:
    log = Log((0, Claimed(SLOT, *A)), (1, ClaimReleased(SLOT, *A, 1, 5)), (1, Claimed(SLOT, *B)))

    assert (log.slot.owner, log.slot.epoch, log.slot.position) == (B, 3, 5)


@pytest.mark.parametrize(("given", "position"), [(None, 5), (3, 5), (8, 8)])
def test_a_release_does_not_move_the_position_back(given: int | None, position: int) -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, beat(A, 1, 5)), (0, ClaimReleased(SLOT, *A, 1, given)))

    assert log.slot.position == position


@pytest.mark.parametrize("position", [0, 3, 8])
def test_reset_sets_exactly_the_given_position(position: int) -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, beat(A, 1, 5)), (0, ClaimReleased(SLOT, *A, 1, position, reset=True)))

    assert (log.slot.position, log.slot.map.frontier) == (position, position)


@pytest.mark.parametrize(("member", "epoch"), [(B, 1), (A2, 1), (A, 0), (A, 2)])
def test_a_release_of_another_member_instance_or_epoch_is_refused(member: tuple[str, str], epoch: int) -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 1, ClaimReleased(SLOT, *member, epoch, 9, reset=True, fenced=("pa",)), "not the owner")


def test_a_late_release_is_accepted_until_somebody_else_is_granted() -> None:
    log = Log((0, Claimed(SLOT, *A)), (9 * LEASE_MS, ClaimReleased(SLOT, *A, 1, 2)))
    assert log.slot.position == 2

    log = Log((0, Claimed(SLOT, *A)), (LEASE_MS, Claimed(SLOT, *B)))
    assert_refused(log, LEASE_MS, ClaimReleased(SLOT, *A, 1, 2), "not the owner")


def test_a_slot_is_released_once() -> None:
    log = Log((0, Claimed(SLOT, *A)), (1, ClaimReleased(SLOT, *A, 1, 5)))

    assert_refused(log, 1, ClaimReleased(SLOT, *A, 1, 9), "not the owner")


def test_a_release_takes_the_listed_producers_away_and_leaves_the_others() -> None:
    log = Log(
        (0, Claimed(SLOT, *A, producer="pa")),
        (LEASE_MS, Claimed(SLOT, *B, producer="pb")),
        (LEASE_MS, ClaimReleased(SLOT, *B, 2, fenced=("pb",))),
    )

    assert log.slot.producers == {"pa"}


# Intended


def test_an_intent_is_kept_until_the_commit_heartbeat() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, beat(A, 1, 5)), (0, Intended(SLOT, *A, 1, 8)), (0, beat(A, 1)))
    assert log.slot.intent == 8

    log.write(0, beat(A, 1, 8))
    assert log.fold.machine.slot(SLOT).intent is None
    assert log.slot.position == 8


def test_an_intent_is_dropped_by_a_release() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, Intended(SLOT, *A, 1, 8)), (0, ClaimReleased(SLOT, *A, 1)))

    assert log.slot.intent is None


@pytest.mark.parametrize(("member", "epoch"), [(B, 1), (A2, 1), (A, 0)])
def test_an_intent_of_another_member_instance_or_epoch_is_refused(member: tuple[str, str], epoch: int) -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 1, Intended(SLOT, *member, epoch, 8), "not the owner")


def test_an_intent_is_refused_after_expiry() -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, LEASE_MS, Intended(SLOT, *A, 1, 8), "expired")


@pytest.mark.parametrize("upto", [4, 5])
def test_an_intent_must_be_above_the_position(upto: int) -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, beat(A, 1, 5)))

    assert_refused(log, 0, Intended(SLOT, *A, 1, upto), "position is at 5")


# ProducersFenced


def test_producers_of_a_slot_without_a_valid_owner_can_be_fenced_by_anybody() -> None:
    log = Log((0, Claimed(SLOT, *A, producer="pa")), (LEASE_MS, ProducersFenced(SLOT, *B, ("pa", "unknown"))))

    assert log.slot.producers == set()
    assert log.slot.owner == A


def test_producers_of_a_released_slot_can_be_fenced_at_once() -> None:
    log = Log(
        (0, Claimed(SLOT, *A, producer="pa")), (1, ClaimReleased(SLOT, *A, 1)), (1, ProducersFenced(SLOT, *B, ("pa",)))
    )

    assert log.slot.producers == set()


def test_producers_under_a_valid_owner_are_not_fenced_from_outside() -> None:
    log = Log((0, Claimed(SLOT, *A, producer="pa")))

    assert_refused(log, LEASE_MS - 1, ProducersFenced(SLOT, *B, ("pa",)), "owned by a/1")


def test_what_was_fenced_before_a_later_grant_is_not_cleared() -> None:
    """The later owner may have initialised the very same id anew."""
    log = Log((0, Claimed(SLOT, *A, producer="pa")), (LEASE_MS, Claimed(SLOT, *A2, producer="pa")))

    assert_refused(log, 2 * LEASE_MS, ProducersFenced(SLOT, *B, ("pa",), 1), "the epoch is 2, not 1")
    assert log.write(2 * LEASE_MS, ProducersFenced(SLOT, *B, ("pa",), 2)).kind is Kind.ACCEPTED
    assert log.slot.producers == set()


def test_fencing_what_is_not_there_changes_nothing() -> None:
    assert Log().write(0, ProducersFenced(SLOT, *B, ("pa",))).kind is Kind.UNCHANGED


# Adoption, where the log was cut and no snapshot exists


def test_a_heartbeat_from_before_the_log_start_is_adopted() -> None:
    log = Log((0, beat(A, 40, 7, producer="pa")), log_start=100)

    assert (log.slot.owner, log.slot.epoch, log.slot.position) == (A, 40, 7)
    assert log.slot.producers == {"pa"}


def test_the_larger_of_two_epochs_from_before_the_log_start_wins() -> None:
    log = Log((0, beat(A, 40)), (0, beat(B, 50)), log_start=100)
    assert log.slot.owner == B

    assert_refused(log, 0, beat(A, 40), "not the owner")
    assert_refused(log, 0, beat(A, 50), "not the owner")


def test_an_adopted_owner_is_an_owner_like_any_other() -> None:
    log = Log((0, beat(A, 40, 7)), log_start=100)

    assert_refused(log, LEASE_MS - 1, Claimed(SLOT, *B), "owned by a/1")
    assert log.write(LEASE_MS, Claimed(SLOT, *B)).is_accepted
    assert_refused(log, LEASE_MS, beat(A, 99), "not the owner")


def test_the_intent_of_an_older_tenure_does_not_survive_an_adoption() -> None:
    log = Log((0, beat(A, 40, 7)), (0, Intended(SLOT, *A, 40, 9)), (0, beat(B, 50)), log_start=100)

    assert log.slot.intent is None


@pytest.mark.parametrize("epoch", [100, 101, -1])
def test_a_heartbeat_that_names_an_epoch_inside_the_visible_log_is_refused(epoch: int) -> None:
    assert_refused(Log(log_start=100), 0, beat(A, epoch), "not the owner")


def test_nothing_is_adopted_from_a_whole_log() -> None:
    assert_refused(Log(), 0, beat(A, 0), "not the owner")


def test_only_a_heartbeat_is_adopted() -> None:
    log = Log(log_start=100)

    assert_refused(log, 0, ClaimReleased(SLOT, *A, 40, 7), "not the owner")
    assert_refused(log, 0, Intended(SLOT, *A, 40, 7), "not the owner")


def test_a_log_start_that_stands_in_a_snapshot_outweighs_that_of_its_reader() -> None:
    whole = Log((0, Claimed(SLOT, *A)))
    reader = Fold(Claims(log_start=100))
    reader.load(whole.fold.dump(), offset=whole.fold.next_offset - 1)

    judged = reader.feed(100, 0, encode(beat(B, 50)))

    assert judged.verdict.kind is Kind.IGNORED


# Genesis and the operator's clock


@pytest.mark.parametrize("values", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (1, -5, 1, 1)])
def test_a_genesis_without_sense_founds_nothing(values: tuple[int, int, int, int]) -> None:
    fold = Fold(Claims())

    assert fold.feed(0, 0, encode(ClaimsFounded(*values))).verdict.kind is Kind.IGNORED
    assert fold.genesis is None


def test_a_clock_reset_lets_every_lease_begin_anew_from_its_time() -> None:
    log = Log((9_000_000, Claimed(SLOT, *A)), (100, ClockReset("ops")))

    assert_refused(log, 99 + LEASE_MS, Claimed(SLOT, *B), "owned by a/1")
    assert log.write(100 + LEASE_MS, Claimed(SLOT, *B)).is_accepted


@pytest.mark.parametrize("position", [-1, -(2**63)])
def test_a_negative_position_is_refused(position: int) -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, 0, beat(A, 1, position), "no offset")
    assert_refused(log, 0, ClaimReleased(SLOT, *A, 1, position, reset=True), "no offset")
