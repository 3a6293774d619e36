"""The table of a queue's records, line by line: what is granted, finished, released, buried and dropped, and when."""

from __future__ import annotations

import pytest

from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, Kind, Verdict
from penstock.queue.cells import Status
from penstock.queue.records import (
    Acked,
    Buried,
    Copied,
    Dropped,
    Kept,
    LeaseFenced,
    Paused,
    Progressed,
    QueueFounded,
    QueuesChanged,
    Redriven,
    Released,
    Renewed,
    Resumed,
    Taken,
)
from penstock.queue.rulings import Ruling
from penstock.queue.state import QueueMachine

LEASE_MS = 30_000


class Log:
    """A ledger that starts at position 0, with the genesis at offset 0; times are told with each record."""

    def __init__(self, *, start: int = 0) -> None:
        self.fold = Fold(QueueMachine())
        self.at(0, QueueFounded(1, "t", start, ("orders",)))

    @property
    def machine(self) -> QueueMachine:
        return self.fold.machine

    def at(self, time_ms: int, record: Record) -> Verdict:
        return self.fold.feed(self.fold.next_offset, time_ms, encode(record)).verdict

    def taken(self, time_ms: int, *ranges: tuple[int, int], worker: str = "w1", **more: object) -> int:
        """The epoch of a grant that must succeed, at least in part."""
        verdict = self.at(time_ms, Taken(worker, 0, ranges, LEASE_MS, **more))  # type: ignore[arg-type]
        assert verdict.kind in (Kind.ACCEPTED, Kind.PARTIAL), verdict
        return self.fold.next_offset - 1

    def status(self, offset: int) -> Status:
        return self.machine.cells.at(offset).status

    def charges(self, offset: int) -> int:
        return self.machine.cells.at(offset).charges

    def losses(self, offset: int) -> int:
        return self.machine.cells.at(offset).losses


def covered(verdict: Verdict) -> list[tuple[int, int]]:
    return list(verdict.covered) if isinstance(verdict, Ruling) else []


# Grants


def test_the_genesis_sets_the_position() -> None:
    log = Log(start=700)

    assert log.machine.position == 700
    assert log.at(1, Taken("w1", 0, ((650, 710),), LEASE_MS)).kind is Kind.PARTIAL
    assert log.machine.queues == ("orders",)


@pytest.mark.parametrize(
    "founded", [QueueFounded(2, "t", 0, ()), QueueFounded(1, "t", -1, ()), QueueFounded(0, "", 0, ())]
)
def test_a_genesis_that_cannot_be_is_not_the_first_valid_one(founded: QueueFounded) -> None:
    fold = Fold(QueueMachine())

    assert fold.feed(0, 0, encode(founded)).verdict.kind is Kind.IGNORED
    assert fold.feed(1, 0, encode(QueueFounded(1, "t", 5, ()))).verdict.is_accepted
    assert fold.machine.position == 5


def test_a_grant_covers_what_is_free_and_only_that() -> None:
    log = Log()
    first = log.taken(0, (0, 10))
    log.at(1, Acked(first, ((0, 2),)))
    log.at(1, Released(first, ((2, 3),), 5_000, counts=True))
    log.at(1, Buried(first, ((3, 4),)))

    verdict = log.at(2, Taken("w2", 0, ((0, 12),), LEASE_MS))

    assert (verdict.kind, covered(verdict)) == (Kind.PARTIAL, [(10, 12)])
    assert log.machine.leases[first].held == [(4, 10)]


def test_a_lease_is_valid_up_to_but_not_at_its_end() -> None:
    log = Log()
    log.taken(1_000, (0, 5))

    assert log.at(30_999, Taken("w2", 0, ((0, 5),), LEASE_MS)).kind is Kind.IGNORED
    assert log.at(31_000, Taken("w2", 0, ((0, 5),), LEASE_MS)).is_accepted


def test_a_worker_is_not_granted_again_what_it_has_itself() -> None:
    log = Log()
    log.taken(0, (0, 5))

    verdict = log.at(1, Taken("w1", 0, ((0, 5),), LEASE_MS))

    assert verdict.kind is Kind.IGNORED
    assert verdict.reason == "offset 0 is leased by w1 under epoch 1"


@pytest.mark.parametrize(
    "taken",
    [
        Taken("w1", 0, (), LEASE_MS),
        Taken("w1", 0, ((3, 3),), LEASE_MS),
        Taken("w1", 0, ((5, 3),), LEASE_MS),
        Taken("w1", 0, ((-1, 3),), LEASE_MS),
        Taken("w1", 0, ((0, 2**63),), LEASE_MS),
        Taken("w1", 0, ((0, 1),), 0),
        Taken("w1", 0, ((0, 1),), -5),
    ],
)
def test_an_impossible_question_is_refused(taken: Taken) -> None:
    log = Log()

    assert log.at(0, taken).kind is Kind.IGNORED
    assert log.machine.leases == {}


# A lease dies whole


def test_who_is_granted_a_part_of_an_expired_lease_ends_all_of_it() -> None:
    log = Log()
    old = log.taken(0, (0, 3))

    log.taken(LEASE_MS, (0, 1), worker="w2")

    assert old not in log.machine.leases
    assert [log.status(offset) for offset in range(3)] == [Status.LEASED, Status.READY, Status.READY]
    assert [log.losses(offset) for offset in range(3)] == [1, 1, 1]
    assert log.at(LEASE_MS, Acked(old, ((1, 3),))).kind is Kind.IGNORED
    assert log.at(LEASE_MS, Renewed("w1", (old,))).kind is Kind.IGNORED


def test_what_left_a_lease_before_its_end_is_not_lost_with_it() -> None:
    log = Log()
    old = log.taken(0, (0, 4))
    log.at(1, Acked(old, ((0, 1),)))
    log.at(1, Released(old, ((1, 2),), 0, counts=False))

    log.taken(LEASE_MS, (2, 3), worker="w2")

    assert [log.losses(offset) for offset in range(4)] == [0, 0, 1, 1]


def test_only_a_message_that_was_alone_is_charged_for_a_loss() -> None:
    log = Log()
    log.taken(0, (0, 2))
    log.taken(0, (2, 3), worker="w2", alone=True)

    log.taken(LEASE_MS, (0, 3), worker="w3")

    assert [log.charges(offset) for offset in range(3)] == [0, 0, 1]
    assert [log.losses(offset) for offset in range(3)] == [1, 1, 1]


def test_a_late_ack_counts_while_the_lease_is_not_over() -> None:
    log = Log()
    epoch = log.taken(0, (0, 3))

    assert log.at(10 * LEASE_MS, Acked(epoch, ((0, 3),))).is_accepted
    assert log.machine.position == 3
    assert log.machine.leases == {}


def test_a_late_renewal_makes_an_expired_lease_valid_again() -> None:
    log = Log()
    epoch = log.taken(0, (0, 3))

    renewed = log.at(LEASE_MS + 5, Renewed("w1", (epoch,)))

    assert (renewed.kind, covered(renewed)) == (Kind.ACCEPTED, [(0, 3)])
    assert log.at(LEASE_MS + 6, Taken("w2", 0, ((0, 3),), LEASE_MS)).kind is Kind.IGNORED


def test_a_renewal_has_one_verdict_for_each_epoch() -> None:
    log = Log()
    mine, theirs = log.taken(0, (0, 1)), log.taken(0, (1, 2), worker="w2")

    verdict = log.at(5, Renewed("w1", (mine, theirs, 77)))

    assert verdict.kind is Kind.PARTIAL
    assert [part.kind for part in verdict.parts] == [Kind.ACCEPTED, Kind.IGNORED, Kind.IGNORED]
    assert covered(verdict) == [(0, 1)]
    assert log.machine.leases[theirs].renewed_ms == 0


# Producers


def test_an_expired_lease_that_names_a_producer_is_granted_only_after_its_fence() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2), producer="p1")

    assert log.at(5, LeaseFenced(epoch)).kind is Kind.IGNORED
    refused = log.at(LEASE_MS, Taken("w2", 0, ((0, 2),), LEASE_MS, "p2"))
    assert refused.reason == "offset 0 is leased by w1 under epoch 1, expired, and producer p1 is not fenced"
    assert log.at(LEASE_MS, Dropped(((0, 2),), "purged")).kind is Kind.IGNORED
    assert covered(log.at(LEASE_MS, LeaseFenced(epoch))) == [(0, 2)]
    assert log.at(LEASE_MS, Taken("w2", 0, ((0, 2),), LEASE_MS, "p2")).is_accepted
    assert log.losses(0) == 1


def test_every_lease_is_fenced_for_itself() -> None:
    log = Log()
    first = log.taken(0, (0, 1), producer="p1")
    log.taken(0, (1, 2), worker="w2", producer="p2")
    log.at(LEASE_MS, LeaseFenced(first))

    assert covered(log.at(LEASE_MS, Taken("w3", 0, ((0, 2),), LEASE_MS))) == [(0, 1)]


# Releases


def test_a_released_offset_waits_in_log_time() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2))

    log.at(1_000, Released(epoch, ((0, 1),), 500, counts=True))

    assert log.at(1_499, Taken("w2", 0, ((0, 1),), LEASE_MS)).reason == "offset 0 is waiting until 1500"
    assert log.at(1_500, Taken("w2", 0, ((0, 1),), LEASE_MS)).is_accepted
    assert log.machine.cells.at(0).attempt == 2


def test_only_a_counted_release_is_an_attempt() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2))

    log.at(1, Released(epoch, ((0, 1),), 0, counts=True))
    log.at(1, Released(epoch, ((1, 2),), 0, counts=False))

    assert [log.charges(offset) for offset in range(2)] == [1, 0]
    assert [log.status(offset) for offset in range(2)] == [Status.READY, Status.READY]


def test_a_delay_has_no_horizon_and_no_past() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2))

    assert log.at(1, Released(epoch, ((0, 1),), -1, counts=True)).kind is Kind.IGNORED
    assert log.at(1, Released(epoch, ((0, 1),), 2**64 - 1, counts=True)).is_accepted
    assert log.machine.cells.at(0).due_ms == 2**63 - 1


def test_a_resume_token_reaches_the_next_attempt_and_ends_with_the_message() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2))

    assert log.at(1, Progressed(epoch, 0, b"page 7")).is_accepted
    assert log.at(1, Progressed(epoch, 1, b"x" * 1_025)).kind is Kind.IGNORED
    assert log.at(1, Progressed(epoch, 2, b"not mine")).kind is Kind.IGNORED
    again = log.taken(LEASE_MS, (0, 1), worker="w2")
    assert log.machine.cells.at(0).progress == b"page 7"
    log.at(LEASE_MS, Acked(again, ((0, 1),)))
    assert log.machine.cells.at(0).progress is None


# Burials


def test_the_position_passes_a_burial_only_when_the_copy_is_there() -> None:
    log = Log()
    epoch = log.taken(0, (0, 3))
    log.at(1, Buried(epoch, ((1, 2),), "poison", "Traceback"))
    log.at(2, Acked(epoch, ((0, 1), (2, 3))))

    assert log.machine.position == 1
    assert log.at(10**9, Taken("w2", 0, ((1, 2),), LEASE_MS)).kind is Kind.IGNORED
    assert log.at(10**9, Dropped(((1, 2),), "purged")).kind is Kind.IGNORED
    [burial] = log.machine.burials.values()
    assert (burial.reason, burial.error, burial.time_ms) == ("poison", "Traceback", 1)
    assert log.at(10**9, Copied(((1, 2),))).is_accepted
    assert log.machine.position == 3
    assert log.machine.burials == {}
    assert log.at(10**9, Copied(((1, 2),))).kind is Kind.UNCHANGED


def test_a_burial_is_an_attempt_and_its_error_is_cut_to_4_kb() -> None:
    log = Log()
    epoch = log.taken(0, (0, 1))

    log.at(1, Buried(epoch, ((0, 1),), "poison", "ß" * 3_000))

    assert log.charges(0) == 1
    [burial] = log.machine.burials.values()
    assert burial.error == "ß" * 2_048


def test_a_zombies_burial_is_ignored() -> None:
    log = Log()
    old = log.taken(0, (0, 1))
    new = log.taken(LEASE_MS, (0, 1), worker="w2")

    assert log.at(LEASE_MS + 1, Buried(old, ((0, 1),), "poison")).kind is Kind.IGNORED
    assert log.at(LEASE_MS + 2, Acked(new, ((0, 1),))).is_accepted
    assert log.machine.position == 1


def test_a_dead_letter_is_redriven_once() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2))
    log.at(1, Buried(epoch, ((0, 1),)))

    assert log.at(2, Redriven(((0, 1),), "ops")).kind is Kind.IGNORED
    log.at(3, Copied(((0, 1),)))
    assert log.at(4, Redriven(((0, 2),), "ops")).kind is Kind.PARTIAL
    assert log.at(5, Redriven(((0, 1),), "ops")).kind is Kind.IGNORED
    assert log.status(0) is Status.FINISHED


def test_retention_takes_also_what_was_to_be_copied() -> None:
    log = Log()
    epoch = log.taken(0, (0, 1))
    log.at(1, Buried(epoch, ((0, 1),)))

    assert log.at(2, Dropped(((0, 1),), "retention")).is_accepted
    assert (log.machine.position, log.machine.burials) == (1, {})


# Drops, kept copies, pauses


def test_a_drop_takes_an_offset_out_of_an_expired_lease_and_leaves_the_rest_in_it() -> None:
    log = Log()
    epoch = log.taken(0, (0, 3))

    assert log.at(1, Dropped(((0, 1),), "purged")).kind is Kind.IGNORED
    assert log.at(LEASE_MS, Dropped(((0, 1),), "purged")).is_accepted
    assert log.at(LEASE_MS, Acked(epoch, ((0, 3),))).kind is Kind.PARTIAL
    assert log.machine.position == 3


def test_what_is_dropped_twice_is_unchanged() -> None:
    log = Log()

    assert log.at(1, Dropped(((0, 9),), "foreign")).is_accepted
    assert log.at(2, Dropped(((0, 9),), "foreign")).kind is Kind.UNCHANGED


def test_a_kept_copy_is_remembered_until_its_message_is_finished() -> None:
    log = Log()
    epoch = log.taken(0, (0, 2))

    assert log.at(1, Kept(((0, 2),))).is_accepted
    assert log.at(2, Kept(((0, 2),))).kind is Kind.UNCHANGED
    log.at(3, Acked(epoch, ((0, 1),)))
    assert log.at(4, Kept(((0, 1),))).kind is Kind.IGNORED
    assert [log.machine.cells.at(offset).is_kept for offset in range(2)] == [False, True]


def test_a_pause_of_all_grants_nothing_and_one_of_a_queue_is_for_its_owners_to_heed() -> None:
    log = Log()
    epoch = log.taken(0, (0, 1))
    log.at(1, Paused("orders", None, "ops", "deploy"))
    log.taken(2, (1, 2))
    log.at(3, Paused("all", 100, "ops", "deploy"))

    assert log.at(99, Taken("w1", 0, ((2, 3),), LEASE_MS)).reason == "paused by ops"
    assert log.at(99, Acked(epoch, ((0, 1),))).is_accepted
    assert log.at(100, Taken("w1", 0, ((2, 3),), LEASE_MS)).is_accepted
    assert log.machine.pause_of("orders", 10**9) is not None


def test_the_last_pause_or_resumption_wins() -> None:
    log = Log()
    log.at(1, Paused("all", None, "ops", ""))

    assert log.at(2, Paused("all", None, "ops", "")).kind is Kind.UNCHANGED
    assert log.at(3, Resumed("all", "ops")).is_accepted
    assert log.at(4, Resumed("all", "ops")).kind is Kind.UNCHANGED
    log.at(5, Paused("all", 50, "ops", ""))
    assert log.at(6, Paused("all", 6, "ops", "")).is_accepted
    assert log.at(7, Taken("w1", 0, ((0, 1),), LEASE_MS)).is_accepted


def test_queues_can_be_changed() -> None:
    log = Log()

    assert log.at(1, QueuesChanged(("orders", "mails"), "w1")).is_accepted
    assert log.at(2, QueuesChanged(("orders", "mails"), "w2")).kind is Kind.UNCHANGED
    assert log.machine.queues == ("orders", "mails")


# The ledger's own


def test_a_clock_reset_gives_every_lease_its_time_again_and_no_delay_more_than_it_had() -> None:
    log = Log()
    epoch = log.taken(0, (0, 4))
    log.at(1_000, Released(epoch, ((0, 1),), 600_000, counts=True))
    far_ahead_ms = 10**12
    log.at(far_ahead_ms, Released(epoch, ((1, 2),), 5_000, counts=True))

    log.at(2_000, ClockReset("ops"))

    assert log.at(2_001, Taken("w2", 0, ((2, 4),), LEASE_MS)).kind is Kind.IGNORED
    assert [log.machine.cells.at(offset).due_ms for offset in range(2)] == [601_000, 7_000]


def test_a_million_acks_leave_one_run_and_no_lease() -> None:
    machine = QueueMachine()
    for number in range(2_000):
        ranges = ((number * 500, number * 500 + 500),)
        machine.apply(Taken("w1", number, ranges, LEASE_MS), 2 * number, number)
        machine.apply(Acked(2 * number, ranges), 2 * number + 1, number)

    assert machine.position == 1_000_000
    assert (len(machine.cells), machine.leases) == (2, {})
