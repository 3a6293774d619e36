from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.progress import Lot, Progress


def handed_out(progress: Progress, *offsets: int) -> Lot:
    lot = Lot(offsets, offsets[0], offsets[-1] + 1)
    progress.handed_out(lot)
    return lot


def test_the_position_moves_over_a_finished_prefix_only() -> None:
    progress = Progress(10)
    lot = handed_out(progress, 10, 11, 15)

    lot.finished(11)
    assert progress.settle() == 10
    lot.finished(10)
    assert progress.settle() == 15
    lot.finished(15)
    assert progress.settle() == 16


def test_a_later_lot_that_is_finished_waits_for_the_earlier_one() -> None:
    progress = Progress(0)
    first, second = handed_out(progress, 0, 1), handed_out(progress, 2, 3)

    second.finished_all()
    assert progress.settle() == 0
    first.finished_all()
    assert progress.settle() == 4
    assert progress.outstanding_count == 0


def test_finishing_again_or_what_was_never_handed_out_changes_nothing() -> None:
    progress = Progress(0)
    lot = handed_out(progress, 0, 1)

    lot.finished(0)
    lot.finished(0)
    lot.finished(7)

    assert progress.settle() == 1
    assert progress.outstanding_count == 1


def test_offsets_that_never_become_visible_are_passed_when_nothing_is_outstanding_before_them() -> None:
    progress = Progress(0)
    lot = handed_out(progress, 0)
    progress.passed(5)
    assert progress.settle() == 0

    lot.finished_all()
    assert progress.settle() == 5


@given(st.lists(st.integers(0, 60), unique=True, min_size=1), st.integers(1, 8))
def test_below_the_position_everything_is_finished(order: list[int], lot_size: int) -> None:
    progress, offsets = Progress(0), sorted(order)
    lots = {}
    for at in range(0, len(offsets), lot_size):
        part = offsets[at : at + lot_size]
        lots |= dict.fromkeys(part, handed_out(progress, *part))
    waiting = set(offsets)
    for offset in order:
        lots[offset].finished(offset)
        waiting.discard(offset)
        assert progress.settle() == min(waiting, default=offsets[-1] + 1)
