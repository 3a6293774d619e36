"""Messages with the offsets that are finished with them: cut, joined, and sorted out of each other."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from queue_records import Record

from penstock.kafka.reader import Received, every
from penstock.queue.parcel import parcel_of
from penstock.queue.ranges import Range, joined
from penstock.queue.stretch import (
    Stretch,
    count_within,
    found_in,
    once_each,
    parts_within,
    ranges_of,
    row,
    spanned,
)

pieces = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair))), max_size=20)


@st.composite
def rows(draw: st.DrawFn) -> list[Stretch]:
    """Stretches in order, with holes in them and between them."""
    found, at = [], 0
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 3))
        start, records = at, []
        for _ in range(draw(st.integers(1, 5))):
            at += draw(st.sampled_from([0, 0, 0, 1, 2]))
            records.append(Record(at))
            at += 1
        found.append(row(records, start))
    return found


@st.composite
def scattered(draw: st.DrawFn) -> list[Stretch]:
    """The same, and some of them are several ranges of what was once one."""
    found: list[Stretch] = []
    for stretch in draw(rows()):
        chosen = joined(sorted(draw(pieces))) if draw(st.booleans()) else ()
        found.append(stretch.within(chosen) or stretch)
    return found


def spans_of(stretches: list[Stretch]) -> list[tuple[int, Range]]:
    return [(record.offset(), part) for stretch in stretches for record, part in stretch.spans()]


def offsets_in(ranges: list[Range] | tuple[Range, ...]) -> list[int]:
    return [offset for start, end in ranges for offset in range(start, end)]


@given(scattered(), pieces)
def test_a_message_goes_with_its_own_offset_and_takes_what_is_ours_before_it(
    stretches: list[Stretch], given_ranges: list[Range]
) -> None:
    ranges = joined(sorted(given_ranges))
    ours = set(offsets_in(ranges))
    wanted = [
        (at, [offset for offset in range(*span) if offset in ours and set(range(offset, span[1])) <= ours])
        for at, span in spans_of(stretches)
        if at in ours
    ]

    parts = parts_within(stretches, ranges)

    assert [(at, list(range(*span))) for at, span in spans_of(parts)] == wanted
    assert count_within(stretches, ranges) == len(wanted)
    assert parts == [part for stretch in stretches if (part := stretch.within(ranges)) is not None]
    assert all(part.ranges == joined(part.ranges) for part in parts)


@given(scattered())
def test_all_ways_to_ask_for_spans_say_the_same(stretches: list[Stretch]) -> None:
    for stretch in stretches:
        spans = [part for _, part in stretch.spans()]
        assert list(stretch.starts()) == [start for start, _ in spans]
        assert [stretch.span_of(number) for number in range(len(spans))] == spans
        assert stretch.spans_at(range(0, len(spans), 2)) == spans[::2]
        assert joined(spans) == stretch.ranges
        assert (stretch.start, stretch.end) == (spans[0][0], spans[-1][1])
        assert spanned(stretch.spans()) == stretch


@given(scattered(), st.integers(1, 6))
def test_what_is_cut_is_nothing_but_in_two(stretches: list[Stretch], count: int) -> None:
    for stretch in stretches:
        first, rest = stretch.cut(count)
        assert len(first.records) == min(count, len(stretch.records))
        assert spans_of([first, *([rest] if rest else [])]) == spans_of([stretch])
        assert ranges_of([first, *([rest] if rest else [])]) == stretch.ranges
        assert rest is None or all(part == joined(part) for part in (first.ranges, rest.ranges))
        assert rest is None or rest.size_bytes == sum(map(len, rest.records))


@given(scattered(), st.lists(pieces, min_size=1, max_size=3))
def test_messages_that_are_there_twice_or_between_each_other_come_once_and_in_order(
    stretches: list[Stretch], chosen: list[list[Range]]
) -> None:
    several = [part for ranges in chosen for part in parts_within(stretches, joined(sorted(ranges)))]

    found = once_each(several)

    assert sorted({at for at, _ in spans_of(several)}) == [at for at, _ in spans_of(found)]
    assert all(one.end <= other.start for one, other in pairwise(found))
    assert all(stretch.ranges == joined(stretch.ranges) for stretch in found)
    assert set(offsets_in(ranges_of(found))) == {offset for each in several for offset in offsets_in(each.ranges)}


def test_an_unpacked_record_has_all_that_the_packed_one_had() -> None:
    given = [
        Record(7, b"key", b"v" * 100, [("colour", b"red"), ("colour", None)]),
        Record(9, None, None, []),
        Record(12, b"", b""),
    ]

    found = parcel_of(given).unpacked()

    for copy, record in zip(found, given, strict=True):
        names = [what for what in vars(Received) if not what.startswith("_")]
        assert [getattr(copy, name)() for name in names] == [getattr(record, name)() for name in names]
        assert len(copy) == len(record)


@given(scattered(), st.data())
def test_records_of_one_stretch_are_all_of_one_type(stretches: list[Stretch], data: st.DataObject) -> None:
    chosen = [stretch for stretch in stretches if data.draw(st.booleans())]
    kept = [Stretch(parcel_of(stretch.records).unpacked(), stretch.ranges) for stretch in chosen]

    found = once_each([*stretches, *kept])

    assert spans_of(found) == spans_of(once_each(stretches))
    assert all(len(list(every(stretch.records, "value"))) == len(stretch.records) for stretch in found)
    assert all(len(set(map(type, stretch.records))) == 1 for stretch in found)


@given(scattered())
def test_the_ranges_of_several_are_all_their_offsets(stretches: list[Stretch]) -> None:
    assert ranges_of(stretches) == joined(part for stretch in stretches for part in stretch.ranges)


@given(rows(), pieces)
def test_what_was_read_again_begins_with_the_range_in_which_it_was_looked_for(
    stretches: list[Stretch], given_ranges: list[Range]
) -> None:
    ranges = joined(sorted(given_ranges))
    records = [record for stretch in stretches for record in stretch.records]
    there = [record for record in records if any(start <= record.offset() < end for start, end in ranges)]

    found = found_in(ranges, records, [record.offset() for record in records])

    assert (list(found.records) if found else []) == there
    for start, end in found.ranges if found else ():
        assert any(start == asked and end <= upto for asked, upto in ranges)
        assert end - 1 in {record.offset() for record in there}
