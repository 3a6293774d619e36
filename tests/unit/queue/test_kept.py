"""What a worker keeps of messages that it gave back, so that it need not read them again."""

from __future__ import annotations

from queue_records import Record, values

from penstock.queue.kept import Kept
from penstock.queue.ranges import Range, Ranges
from penstock.queue.stretch import Stretch, row


def kept(count_max: int = 10, bytes_max: int = 1_000) -> Kept:
    return Kept(count_max=count_max, bytes_max=bytes_max)


def spans_of(stretches: list[Stretch]) -> list[tuple[int, bytes | None, Range]]:
    return [(record.offset(), record.value(), span) for stretch in stretches for record, span in stretch.spans()]


def test_what_was_kept_is_given_once_and_the_rest_is_left_to_be_read() -> None:
    store = kept()
    first, second = values(b"a", start=3), values(b"b", b"c", start=4)
    store.keep(0, [first, second])
    assert store.take(0, ((2, 6),)) == ([], ((2, 6),)), "nothing is known of the first offset"
    found, missing = store.take(0, ((3, 8), (20, 21)))
    assert (spans_of(found), missing) == (spans_of([first, second]), ((6, 8), (20, 21)))
    assert len(store) == 0
    assert store.take(0, ((3, 8),)) == ([], ((3, 8),))


def test_partitions_are_kept_apart_and_forgotten_apart() -> None:
    store = kept()
    store.keep(0, [values(b"a", start=3)])
    store.keep(1, [values(b"b", start=3)])
    store.forget(0)
    assert store.take(0, ((3, 4),)) == ([], ((3, 4),))
    assert [len(part.records) for part in store.take(1, ((3, 4),))[0]] == [1]


def test_a_message_of_whose_span_only_a_part_is_wanted_is_read_again() -> None:
    store = kept()
    store.keep(0, [row([Record(5)], 3)])
    assert store.take(0, ((3, 4),)) == ([], ((3, 4),))


def test_the_oldest_go_when_there_are_too_many_or_they_are_too_large() -> None:
    store = kept(count_max=2)
    store.keep(0, [values(b"a", start=1), values(b"b", start=2), values(b"c", start=3)])
    assert store.take(0, ((1, 4),))[1] == ((1, 4),)
    store = kept(bytes_max=5)
    store.keep(0, [values(b"four", start=1), values(b"44", start=2)])
    assert len(store) == 1
    store.keep(0, [values(b"sixsix", start=3)])
    assert len(store) == 0, "what is larger than the bound alone is not kept at all"


def test_the_same_message_kept_twice_counts_once() -> None:
    store = kept()
    for _ in range(3):
        store.keep(0, [values(b"abc", start=1)])
    assert len(store) == 1


def test_a_message_keeps_the_offsets_before_it_when_a_stretch_is_cut_out_of_another() -> None:
    sparse = row([Record(2), Record(5), Record(6)], 0)
    assert ranges_within(sparse, (0, 3)) == ((0, 3),)
    assert ranges_within(sparse, (0, 1), (4, 6)) == ((4, 6),)
    assert ranges_within(sparse, (1, 3), (6, 9)) == ((1, 3), (6, 7))
    assert ranges_within(sparse, (3, 5), (7, 9)) is None
    dense = values(b"a", b"b", b"c", start=10)
    assert ranges_within(dense, (0, 11), (12, 40)) == ((10, 11), (12, 13))
    assert ranges_within(dense, (0, 10), (13, 14)) is None
    whole, rest = dense.cut(1)
    assert (whole.size_bytes, rest and rest.size_bytes) == (1, 2)


def ranges_within(stretch: Stretch, *ranges: Range) -> Ranges | None:
    part = stretch.within(ranges)
    return None if part is None else part.ranges


def test_what_was_kept_together_comes_together_as_far_as_it_is_wanted() -> None:
    read = values(b"a", b"b", b"c", b"d", b"e", start=0)
    together = read.within(((0, 1), (2, 3), (4, 5)))
    assert together is not None
    store = kept()
    store.keep(0, [together])
    found, missing = store.take(0, ((0, 1), (2, 3), (4, 5)))
    assert (spans_of(found), missing) == (spans_of([together]), ())
    store.keep(0, [together])
    found, missing = store.take(0, ((0, 1), (3, 5)))
    assert [part.ranges for part in found] == [((0, 1), (4, 5))]
    assert missing == ((3, 4),)
    assert len(store) == 0, "what was not wanted now is read again in time"
