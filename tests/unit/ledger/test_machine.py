"""The rules that hold for every ledger, on the example machine."""

from __future__ import annotations

from typing import ClassVar

import pytest

from penstock.errors import InvariantBroken
from penstock.ledger.codec import Record, encode, enveloped
from penstock.ledger.counter import (
    Counter,
    CounterAdded,
    CounterFounded,
    CounterReleased,
    CounterRenewed,
    CounterTaken,
)
from penstock.ledger.machine import ACCEPTED, ClockReset, Fold, Judged, Kind, VersionRaised

LEASE_MS = 1_000


def fold_of(*records: tuple[int, Record | bytes | None]) -> Fold[Counter]:
    """A founded fold that was fed these (time, record)s."""
    fold = Fold(Counter())
    feed(fold, 0, CounterFounded(LEASE_MS))
    for time_ms, record in records:
        feed(fold, time_ms, record)
    return fold


def feed(fold: Fold[Counter], time_ms: int, record: Record | bytes | None) -> Judged:
    value = encode(record) if isinstance(record, Record) else record
    return fold.feed(fold.next_offset, time_ms, value)


class CounterOfVersion2(Counter):
    speaks: ClassVar[int] = 2


def test_the_log_clock_is_the_largest_append_time() -> None:
    fold = fold_of((500, CounterTaken("a")), (300, CounterTaken("b")))

    assert fold.clock_ms == 500


@pytest.mark.parametrize("record", [None, b"junk", CounterRenewed(77), CounterTaken("b")])
def test_every_record_moves_the_clock_also_junk_and_a_refused_one(record: Record | bytes | None) -> None:
    fold = fold_of((100, CounterTaken("a")))

    judged = feed(fold, 700, record)

    assert judged.verdict.kind is Kind.IGNORED
    assert fold.clock_ms == 700


def test_a_record_moves_the_clock_before_it_is_judged() -> None:
    fold = fold_of((0, CounterTaken("a")))

    assert feed(fold, LEASE_MS, CounterTaken("b")).verdict == ACCEPTED


def test_junk_is_counted_with_its_reason() -> None:
    fold = fold_of()

    assert feed(fold, 1, b"").verdict.reason == "shorter than an envelope"
    assert fold.junk_count == 1


def test_the_epoch_of_a_grant_is_the_offset_of_its_record() -> None:
    fold = fold_of((0, None), (0, CounterTaken("a")))

    assert fold.machine.epoch == 2


def test_what_stands_before_the_genesis_is_ignored() -> None:
    fold = Fold(Counter())

    assert feed(fold, 0, CounterTaken("a")).verdict.reason == "before the genesis"
    assert feed(fold, 0, CounterFounded(LEASE_MS)).verdict == ACCEPTED
    assert fold.machine.holder is None


def test_a_genesis_that_the_machine_refuses_does_not_found() -> None:
    fold = Fold(Counter())

    assert feed(fold, 0, CounterFounded(0)).verdict.kind is Kind.IGNORED
    assert feed(fold, 0, CounterFounded(LEASE_MS)).verdict == ACCEPTED
    assert fold.genesis == CounterFounded(LEASE_MS)


def test_the_first_genesis_wins() -> None:
    fold = fold_of()

    assert feed(fold, 0, CounterFounded(LEASE_MS)).verdict.kind is Kind.UNCHANGED
    assert feed(fold, 0, CounterFounded(5)).verdict.reason == "another genesis came first"
    assert fold.machine.lease_ms == LEASE_MS


def test_a_newer_version_ends_the_fold_before_it() -> None:
    fold = fold_of((100, CounterTaken("a")))
    before = fold.dump()

    feed(fold, 900, enveloped(b"anything", version=99))
    feed(fold, 950, CounterReleased(1))

    assert fold.halt is not None
    assert fold.halt.offset == 2
    assert "version 99" in fold.halt.reason
    assert fold.dump() == before
    assert fold.next_offset == 2


def test_a_raised_version_that_we_do_not_speak_ends_the_fold() -> None:
    fold = fold_of()

    feed(fold, 900, VersionRaised(2, "ann"))

    assert fold.halt is not None
    assert fold.clock_ms == 0


def test_a_version_never_goes_down() -> None:
    fold = Fold(CounterOfVersion2())

    assert feed(fold, 0, VersionRaised(2, "ann")).verdict == ACCEPTED
    assert feed(fold, 0, VersionRaised(1, "bob")).verdict.kind is Kind.UNCHANGED
    assert fold.version == 2


def test_a_record_of_a_version_that_is_not_switched_on_is_ignored() -> None:
    fold = Fold(CounterOfVersion2())
    feed(fold, 0, CounterFounded(LEASE_MS))
    version_2 = encode(CounterTaken("a"), version=2)

    assert feed(fold, 0, version_2).verdict.kind is Kind.IGNORED
    feed(fold, 0, VersionRaised(2, "ann"))
    assert feed(fold, 0, version_2).verdict == ACCEPTED


def test_a_clock_far_in_the_future_is_mended_by_a_reset() -> None:
    year_ms = 365 * 86_400_000
    fold = fold_of((1_000, CounterTaken("a")), (year_ms, None), (2_000, CounterRenewed(1)))
    assert fold.machine.renewed_ms == year_ms

    feed(fold, 3_000, ClockReset("ann"))

    assert fold.clock_ms == 3_000
    assert fold.machine.renewed_ms == 3_000
    assert feed(fold, 3_000 + LEASE_MS, CounterTaken("b")).verdict == ACCEPTED


def test_offsets_must_grow() -> None:
    fold = fold_of()

    with pytest.raises(InvariantBroken, match="offset 0 was fed after offset 0"):
        fold.feed(0, 0, None)


def test_an_offset_may_be_skipped_as_transaction_markers_are() -> None:
    fold = fold_of()

    fold.feed(10, 0, encode(CounterTaken("a")))

    assert fold.machine.epoch == 10
    assert fold.next_offset == 11


def test_a_stale_epoch_changes_nothing() -> None:
    fold = fold_of((0, CounterTaken("a")), (LEASE_MS, CounterTaken("b")))

    assert feed(fold, LEASE_MS, CounterAdded(1, 0)).verdict.kind is Kind.IGNORED
    assert feed(fold, LEASE_MS, CounterRenewed(1)).verdict.kind is Kind.IGNORED
    assert feed(fold, LEASE_MS, CounterAdded(2, 0)).verdict == ACCEPTED


def test_a_late_renewal_is_fine_while_nobody_else_was_granted() -> None:
    fold = fold_of((0, CounterTaken("a")))

    assert feed(fold, 5 * LEASE_MS, CounterRenewed(1)).verdict == ACCEPTED
    assert fold.machine.is_held(fold.clock_ms)
