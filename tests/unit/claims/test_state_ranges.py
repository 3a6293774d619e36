"""Every rule of the claims machine by example: ranges of offsets."""

from __future__ import annotations

import pytest

from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    ProducersFenced,
    RangeAcked,
    RangeBuried,
    RangeClaimed,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
    Slot,
)
from penstock.claims.state import Claims, SlotState
from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, Kind, Verdict

HB_MS = 1_000
LEASE_MS = 2 * HB_MS
SLOT = Slot("g", "t", 0)
A, A2, B, C = ("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")


class Log:
    """A founded log: the genesis is at offset 0, the first record after it at 1."""

    def __init__(self, *records: tuple[int, Record], window: int = 10, limit: int = 2) -> None:
        self.fold = Fold(Claims())
        self.write(0, ClaimsFounded(partitions=1, heartbeat_ms=HB_MS, window=window, delivery_limit=limit))
        for time_ms, record in records:
            assert self.write(time_ms, record).is_accepted, record

    def write(self, time_ms: int, record: Record) -> Verdict:
        return self.fold.feed(self.fold.next_offset, time_ms, encode(record)).verdict

    @property
    def slot(self) -> SlotState:
        return self.fold.machine.slot(SLOT)

    @property
    def map(self) -> list[tuple[int, int, str]]:
        return [(item.start, item.end, item.status.value) for item in self.slot.map]

    def held(self, epoch: int) -> list[tuple[int, int]]:
        return [(item.start, item.end) for item in self.slot.map.of_epoch(epoch)]

    def counts(self, start: int) -> tuple[int, int]:
        """Deliveries and charges of the interval that begins there."""
        return next((item.deliveries, item.charges) for item in self.slot.map if item.start == start)


def assert_refused(log: Log, time_ms: int, record: Record, reason: str) -> None:
    """It is ignored, says why, and changes nothing but the clock."""
    before = log.fold.machine.dump()
    verdict = log.write(time_ms, record)
    assert verdict.kind is Kind.IGNORED
    assert reason in verdict.reason
    assert log.fold.machine.dump() == before


# RangeClaimed at the frontier


def test_the_log_hands_out_the_next_free_block() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3)), (0, RangeClaimed(SLOT, *B, 2)))

    assert log.held(1) == [(0, 3)]
    assert log.held(2) == [(3, 5)]
    assert (log.slot.position, log.slot.map.frontier, log.slot.epoch) == (0, 5, 2)
    assert log.counts(0) == (1, 0)


@pytest.mark.parametrize(("start", "first"), [(None, 0), (0, 0), (70, 70)])
def test_the_first_block_begins_where_the_claimer_saw_the_log_start(start: int | None, first: int) -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3, start)))

    assert (log.slot.position, log.held(1)) == (first, [(first, first + 3)])


def test_a_known_position_outweighs_the_claimers_start() -> None:
    log = Log((0, Claimed(SLOT, *A)), (0, ClaimReleased(SLOT, *A, 1, 7)), (0, RangeClaimed(SLOT, *A, 3, 70)))

    assert log.held(3) == [(7, 10)]


def test_the_frontier_stays_within_the_window_of_the_position() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 7)), (0, RangeClaimed(SLOT, *B, 7)))

    assert log.held(2) == [(7, 10)]
    assert_refused(log, 0, RangeClaimed(SLOT, *C, 1), "no offset is free within the window")


def test_the_window_moves_with_the_position() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 10)), (0, RangeAcked(SLOT, *A, 1, 0, 4)), (0, RangeClaimed(SLOT, *B, 9)))

    assert log.held(3) == [(10, 14)]


@pytest.mark.parametrize("n", [0, -1])
def test_nobody_is_granted_no_offsets(n: int) -> None:
    assert_refused(Log(), 0, RangeClaimed(SLOT, *A, n), "no offset")


def test_ranges_are_refused_in_a_paused_group_but_not_to_who_paused_it() -> None:
    log = Log((0, GroupPaused("g", "b", 500)))

    assert_refused(log, 1, RangeClaimed(SLOT, *A, 1), "paused by b")
    assert log.write(1, RangeClaimed(SLOT, *B, 1)).is_accepted


@pytest.mark.parametrize("member", [A, B])
def test_ranges_are_refused_beside_a_valid_owner_of_the_whole_even_to_itself(member: tuple[str, str]) -> None:
    log = Log((0, Claimed(SLOT, *A)))

    assert_refused(log, LEASE_MS - 1, RangeClaimed(SLOT, *member, 1), "owned by a/1")


def test_a_range_ends_an_expired_tenure() -> None:
    log = Log((0, Claimed(SLOT, *A)), (LEASE_MS, RangeClaimed(SLOT, *B, 1)))

    assert (log.slot.owner, log.slot.epoch) == (None, 2)
    assert_refused(log, LEASE_MS, Heartbeat(*A, (Beat(SLOT, 1, 5),)), "not the owner")


def test_ranges_are_refused_until_every_producer_of_the_slot_is_fenced() -> None:
    log = Log((0, Claimed(SLOT, *A, producer="pa")), (0, ClaimReleased(SLOT, *A, 1)))

    assert_refused(log, 1, RangeClaimed(SLOT, *B, 1), "not fenced yet: pa")
    log.write(1, ProducersFenced(SLOT, *B, ("pa",)))
    assert log.write(1, RangeClaimed(SLOT, *B, 1)).is_accepted


# RangeClaimed of what somebody left


def test_a_free_interval_is_granted_before_the_frontier_and_split() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 6)), (0, RangeReleased(SLOT, *A, 1, 2, 6, False)), (0, RangeClaimed(SLOT, *B, 2))
    )

    assert log.map == [(0, 2, "claimed"), (2, 4, "claimed"), (4, 6, "free")]
    assert log.held(3) == [(2, 4)]


def test_an_expired_block_comes_back_in_pieces_of_an_eighth() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 80)), (LEASE_MS, RangeClaimed(SLOT, *B, 80)), window=100)

    assert log.held(2) == [(0, 10)]
    assert log.map == [(0, 10, "claimed"), (10, 80, "lost")]
    assert log.counts(0) == (2, 0)
    log.write(LEASE_MS, RangeClaimed(SLOT, *C, 80))
    assert log.held(3) == [(10, 20)]


def test_a_lost_piece_is_no_larger_than_asked_for() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 80)), (LEASE_MS, RangeClaimed(SLOT, *B, 3)), window=100)

    assert log.held(2) == [(0, 3)]


def test_what_is_lost_a_second_time_comes_back_smaller_still() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 80)), (LEASE_MS, RangeClaimed(SLOT, *B, 80)), window=100)
    log.write(2 * LEASE_MS, RangeClaimed(SLOT, *C, 80))

    assert log.held(3) == [(0, 1)]


def test_candidates_are_taken_in_the_order_of_their_offsets() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 3)),
        (0, RangeClaimed(SLOT, *B, 3)),
        (1, RangeReleased(SLOT, *B, 2, 3, 6, False)),
        (LEASE_MS, RangeClaimed(SLOT, *C, 9)),
    )

    assert log.held(4) == [(0, 1)]


def test_a_range_is_not_a_candidate_before_its_lease_ran_out() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3)), (LEASE_MS - 1, RangeClaimed(SLOT, *B, 3)))

    assert log.held(2) == [(3, 6)]


def test_an_expired_range_that_names_a_producer_is_no_candidate_until_it_is_fenced() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3, producer="pa")), (LEASE_MS, RangeClaimed(SLOT, *B, 3)))
    assert log.held(2) == [(3, 6)]

    log.write(LEASE_MS, RangeFenced(SLOT, *B, 1))
    log.write(LEASE_MS, RangeClaimed(SLOT, *C, 3))
    assert log.held(4) == [(0, 1)]


def test_an_epoch_ends_whole_when_a_part_of_it_is_granted_again() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 6)),
        (0, RangeAcked(SLOT, *A, 1, 2, 4)),
        (LEASE_MS, RangeClaimed(SLOT, *B, 9)),
    )

    assert log.held(1) == []
    assert log.map == [(0, 1, "claimed"), (1, 2, "lost"), (2, 4, "done"), (4, 6, "lost")]
    assert_refused(log, LEASE_MS, RangeAcked(SLOT, *A, 1, 4, 6), "holds no such range")
    assert_refused(log, LEASE_MS, RangeRenewed(SLOT, *A, 1), "holds no such range")


def test_another_epoch_of_the_same_member_lives_on() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 2)),
        (0, RangeClaimed(SLOT, *A, 2)),
        (1, RangeRenewed(SLOT, *A, 2)),
        (LEASE_MS, RangeClaimed(SLOT, *B, 1)),
    )

    assert log.held(1) == []
    assert log.held(2) == [(2, 4)]


# Charges and burial


def test_a_block_of_one_that_is_lost_gets_a_charge_and_a_larger_one_does_not() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 1)), (0, RangeClaimed(SLOT, *B, 2)), (LEASE_MS, RangeClaimed(SLOT, *C, 1)))
    log.write(LEASE_MS, RangeClaimed(SLOT, *C, 1))

    assert log.counts(0) == (2, 1)
    assert log.counts(1) == (2, 0)


def test_an_offset_with_enough_charges_is_granted_alone_to_be_buried() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 3)),
        (0, RangeReleased(SLOT, *A, 1, 0, 3, True)),
        (0, RangeClaimed(SLOT, *A, 3)),
        (0, RangeReleased(SLOT, *A, 3, 0, 3, True)),
        (0, RangeClaimed(SLOT, *A, 3)),
    )

    tenancy = log.slot.map.of_epoch(5)[0].tenancy
    assert log.held(5) == [(0, 1)]
    assert tenancy is not None
    assert tenancy.is_to_bury


def poisoned(*, limit: int = 1) -> Log:
    """One block of one, lost; the grant to be buried is at offset 2."""
    return Log((0, RangeClaimed(SLOT, *A, 1)), (LEASE_MS, RangeClaimed(SLOT, *B, 1)), limit=limit)


def test_what_is_to_be_buried_cannot_be_acked() -> None:
    assert_refused(poisoned(), LEASE_MS, RangeAcked(SLOT, *B, 2, 0, 1), "granted to be buried")


def test_what_is_buried_is_finished() -> None:
    log = poisoned()

    assert log.write(LEASE_MS, RangeBuried(SLOT, *B, 2, 0, 1)).is_accepted
    assert (log.slot.position, log.map) == (1, [])


def test_a_dead_offset_stays_in_the_map_until_the_position_reaches_it() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 1)), (0, RangeClaimed(SLOT, *A, 1)), limit=1)
    log.write(1, RangeRenewed(SLOT, *A, 1))
    log.write(LEASE_MS, RangeClaimed(SLOT, *B, 1))
    log.write(LEASE_MS, RangeBuried(SLOT, *B, 4, 1, 2))

    assert log.map == [(0, 1, "claimed"), (1, 2, "dead")]
    log.write(LEASE_MS, RangeAcked(SLOT, *A, 1, 0, 1))
    assert (log.slot.position, log.map) == (2, [])


def test_only_what_was_granted_to_be_buried_can_be() -> None:
    log = poisoned(limit=2)

    assert_refused(log, LEASE_MS, RangeBuried(SLOT, *B, 2, 0, 1), "not granted to be buried")


@pytest.mark.parametrize(("member", "epoch"), [(A, 2), (A, 1), (B, 1)])
def test_only_its_holder_buries(member: tuple[str, str], epoch: int) -> None:
    assert_refused(poisoned(), LEASE_MS, RangeBuried(SLOT, *member, epoch, 0, 1), "holds no such range")


def test_a_lost_grant_to_be_buried_is_granted_to_be_buried_again() -> None:
    log = poisoned()
    log.write(2 * LEASE_MS, RangeClaimed(SLOT, *C, 5))

    assert log.held(3) == [(0, 1)]
    assert log.write(2 * LEASE_MS, RangeBuried(SLOT, *C, 3, 0, 1)).is_accepted


def test_one_poison_among_5000_is_found_in_few_grants_and_alone() -> None:
    """Whoever is granted offset 4,321 dies; everything else is acked."""
    poison, limit, time_ms = 4_321, 3, 0
    log = Log(window=5_000, limit=limit)
    grants_after_the_loss, buried = 0, []
    log.write(0, RangeClaimed(SLOT, *A, 5_000))
    time_ms += LEASE_MS
    while log.slot.position != 5_000:
        epoch = log.fold.next_offset
        assert log.write(time_ms, RangeClaimed(SLOT, *B, 5_000)).is_accepted
        grants_after_the_loss += 1
        (item,) = log.slot.map.of_epoch(epoch)
        if item.tenancy is not None and item.tenancy.is_to_bury:
            buried.append(item.start)
            log.write(time_ms, RangeBuried(SLOT, *B, epoch, item.start, item.end))
        elif item.start <= poison < item.end:
            time_ms += LEASE_MS
        else:
            log.write(time_ms, RangeAcked(SLOT, *B, epoch, item.start, item.end))

    assert buried == [poison]
    assert grants_after_the_loss <= 8 + 8 + 9 + 9 + limit + 1


# RangeAcked


def test_an_ack_of_a_part_splits_the_range() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 6)), (0, RangeAcked(SLOT, *A, 1, 2, 4)))

    assert log.map == [(0, 2, "claimed"), (2, 4, "done"), (4, 6, "claimed")]
    assert log.slot.position == 0


def test_the_position_moves_over_the_finished_prefix_at_once() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 6)), (0, RangeAcked(SLOT, *A, 1, 2, 4)), (0, RangeAcked(SLOT, *A, 1, 0, 2)))

    assert log.slot.position == 4
    assert log.map == [(4, 6, "claimed")]


def test_an_ack_after_expiry_is_accepted_while_the_epoch_is_not_over() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3)), (9 * LEASE_MS, RangeAcked(SLOT, *A, 1, 0, 3)))

    assert log.slot.position == 3


def test_an_ack_is_refused_when_the_epoch_is_over() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3)), (LEASE_MS, RangeClaimed(SLOT, *B, 1)))

    assert_refused(log, LEASE_MS, RangeAcked(SLOT, *A, 1, 0, 1), "holds no such range")
    assert_refused(log, LEASE_MS, RangeAcked(SLOT, *A, 1, 2, 3), "holds no such range")


@pytest.mark.parametrize(
    ("member", "epoch", "start", "end"),
    [(B, 1, 0, 3), (A2, 1, 0, 3), (A, 2, 0, 3), (A, 1, 0, 4), (A, 1, 2, 5), (A, 1, 7, 9)],
)
def test_an_ack_must_be_covered_by_one_range_of_that_member_and_epoch(
    member: tuple[str, str], epoch: int, start: int, end: int
) -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3)), (0, RangeClaimed(SLOT, *A, 3)))

    assert_refused(log, 0, RangeAcked(SLOT, *member, epoch, start, end), "holds no such range")


@pytest.mark.parametrize(("start", "end"), [(1, 1), (2, 1)])
def test_an_ack_of_no_offsets_is_refused(start: int, end: int) -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 3)))

    assert_refused(log, 0, RangeAcked(SLOT, *A, 1, start, end), "no offset")


@pytest.mark.parametrize(("start", "end"), [(0, 2), (3, 4), (0, 1)])
def test_an_ack_of_what_is_done_already_changes_nothing(start: int, end: int) -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 5)), (0, RangeAcked(SLOT, *A, 1, 0, 2)), (0, RangeAcked(SLOT, *A, 1, 3, 4)))
    before = log.fold.machine.dump()

    assert log.write(0, RangeAcked(SLOT, *A, 1, start, end)).kind is Kind.UNCHANGED
    assert log.fold.machine.dump() == before


# RangeReleased


def test_an_uncounted_release_takes_the_delivery_back_and_charges_nothing() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 5)), (0, RangeReleased(SLOT, *A, 1, 2, 5, False)))

    assert log.map == [(0, 2, "claimed"), (2, 5, "free")]
    assert log.counts(2) == (0, 0)


def test_a_counted_release_keeps_the_delivery_and_adds_a_charge() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 5)), (0, RangeReleased(SLOT, *A, 1, 0, 1, True)))

    assert log.counts(0) == (1, 1)


def test_claiming_ahead_and_giving_back_never_buries() -> None:
    log = Log(limit=1)
    for _ in range(20):
        epoch = log.fold.next_offset
        assert log.write(0, RangeClaimed(SLOT, *A, 1)).is_accepted
        assert log.write(0, RangeReleased(SLOT, *A, epoch, 0, 1, False)).is_accepted

    assert log.counts(0) == (0, 0)


def test_a_late_release_is_accepted_while_the_epoch_is_not_over() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2)), (LEASE_MS, RangeReleased(SLOT, *A, 1, 0, 2, False)))
    assert log.map == [(0, 2, "free")]

    assert_refused(log, LEASE_MS, RangeReleased(SLOT, *A, 1, 0, 2, False), "holds no such range")


@pytest.mark.parametrize(("member", "epoch"), [(B, 1), (A2, 1), (A, 0)])
def test_a_release_of_another_member_or_epoch_is_refused(member: tuple[str, str], epoch: int) -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2)))

    assert_refused(log, 0, RangeReleased(SLOT, *member, epoch, 0, 2, True), "holds no such range")


# RangeRenewed and RangeFenced


def test_a_renewal_renews_all_of_that_epoch() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 6)),
        (0, RangeAcked(SLOT, *A, 1, 2, 4)),
        (LEASE_MS - 1, RangeRenewed(SLOT, *A, 1)),
        (LEASE_MS, RangeClaimed(SLOT, *B, 2)),
    )

    assert log.held(1) == [(0, 2), (4, 6)]
    assert log.held(4) == [(6, 8)]


@pytest.mark.parametrize(("member", "epoch"), [(B, 1), (A2, 1), (A, 0), (A, 2)])
def test_a_renewal_of_another_member_or_epoch_is_refused(member: tuple[str, str], epoch: int) -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2)))

    assert_refused(log, 0, RangeRenewed(SLOT, *member, epoch), "holds no such range")


def test_a_fenced_range_is_lost_whole_and_its_late_ack_refused() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 80, producer="pa")), (LEASE_MS, RangeFenced(SLOT, *B, 1)), window=100)

    assert log.map == [(0, 80, "lost")]
    assert log.slot.map.items[0].most == 10
    assert_refused(log, LEASE_MS, RangeAcked(SLOT, *A, 1, 0, 80), "holds no such range")


def test_a_live_range_is_not_fenced() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2, producer="pa")))

    assert_refused(log, LEASE_MS - 1, RangeFenced(SLOT, *B, 1), "not expired")


def test_a_range_without_producer_is_not_fenced() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2)))

    assert_refused(log, LEASE_MS, RangeFenced(SLOT, *B, 1), "no producer")


def test_an_epoch_that_is_over_is_not_fenced() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2, producer="pa")), (LEASE_MS, RangeFenced(SLOT, *B, 1)))

    assert_refused(log, LEASE_MS, RangeFenced(SLOT, *B, 1), "nothing of that epoch")


# The whole slot over ranges


def test_the_whole_slot_is_refused_while_ranges_are_live() -> None:
    log = Log((0, RangeClaimed(SLOT, *A, 2)))

    assert_refused(log, LEASE_MS - 1, Claimed(SLOT, *B), "ranges of it are claimed")
    assert_refused(log, LEASE_MS - 1, Claimed(SLOT, *A), "ranges of it are claimed")


def test_the_whole_slot_ends_expired_ranges_and_inherits_their_producers() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 2, producer="pa")),
        (0, RangeClaimed(SLOT, *B, 1, producer="pb")),
        (LEASE_MS, Claimed(SLOT, *C, producer="pc")),
    )

    assert log.map == [(0, 2, "lost"), (2, 3, "lost")]
    assert log.slot.producers == {"pa", "pb", "pc"}
    assert log.counts(2) == (1, 1)
    assert_refused(log, LEASE_MS, RangeRenewed(SLOT, *A, 1), "holds no such range")


def test_the_producer_of_a_fenced_range_is_not_inherited() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 2, producer="pa")),
        (LEASE_MS, RangeFenced(SLOT, *B, 1)),
        (LEASE_MS, Claimed(SLOT, *C)),
    )

    assert log.slot.producers == set()


def test_the_whole_slot_keeps_done_islands_and_its_position_skips_them() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 6)),
        (0, RangeAcked(SLOT, *A, 1, 2, 4)),
        (LEASE_MS, Claimed(SLOT, *B)),
        (LEASE_MS, Heartbeat(*B, (Beat(SLOT, 3, 1),))),
    )
    assert log.slot.position == 1

    log.write(LEASE_MS, Heartbeat(*B, (Beat(SLOT, 3, 2),)))
    assert (log.slot.position, log.map) == (4, [(4, 6, "lost")])


def test_a_position_beyond_the_frontier_takes_the_frontier_along() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 6)),
        (LEASE_MS, Claimed(SLOT, *B)),
        (LEASE_MS, ClaimReleased(SLOT, *B, 2, 50)),
        (LEASE_MS, RangeClaimed(SLOT, *C, 2)),
    )

    assert log.held(4) == [(50, 52)]


def test_a_reset_clears_the_map() -> None:
    log = Log(
        (0, RangeClaimed(SLOT, *A, 6)),
        (0, RangeAcked(SLOT, *A, 1, 4, 6)),
        (LEASE_MS, Claimed(SLOT, *B)),
        (LEASE_MS, ClaimReleased(SLOT, *B, 3, 3, reset=True)),
    )
    assert (log.slot.position, log.slot.map.frontier, log.map) == (3, 3, [])

    log.write(LEASE_MS, RangeClaimed(SLOT, *C, 2))
    assert log.held(5) == [(3, 5)]


def test_a_clock_reset_lets_every_range_begin_anew() -> None:
    log = Log((9_000_000, RangeClaimed(SLOT, *A, 2)), (100, ClockReset("ops")))

    log.write(99 + LEASE_MS, RangeClaimed(SLOT, *B, 2))
    assert log.held(3) == [(2, 4)]
    log.write(100 + LEASE_MS, RangeClaimed(SLOT, *B, 2))
    assert log.held(4) == [(0, 1)]


# Numbers at the edge: whatever a record says, the state can still be written down


@pytest.mark.parametrize(
    "records",
    [
        [RangeClaimed(SLOT, *A, 5, 2**64 - 1)],
        [RangeClaimed(SLOT, *A, 2**64 - 1, 7)],
        [Claimed(SLOT, *A), ClaimReleased(SLOT, *A, 1, 2**64 - 1), RangeClaimed(SLOT, *B, 1)],
    ],
)
def test_a_frontier_beyond_every_number_of_the_log_is_refused_and_snapshots_go_on(records: list[Record]) -> None:
    log = Log(window=2**64 - 1)
    for record in records:
        log.write(0, record)

    assert log.fold.hash()
