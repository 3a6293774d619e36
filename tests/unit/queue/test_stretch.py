"""Messages in a row, cut to the offsets that are ours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from queue_records import Record

from penstock.queue.ranges import joined
from penstock.queue.stretch import Stretch, count_within, parts_within

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
        found.append(Stretch(records, start))
    return found


@given(rows(), pieces)
def test_a_message_goes_with_its_own_offset_and_takes_what_is_ours_before_it(
    stretches: list[Stretch], given_ranges: list[tuple[int, int]]
) -> None:
    ranges = joined(sorted(given_ranges))
    ours = {offset for start, end in ranges for offset in range(start, end)}
    wanted = [
        (record.offset(), [offset for offset in range(*span) if offset in ours and set(range(offset, span[1])) <= ours])
        for stretch in stretches
        for record, span in stretch.spans()
        if record.offset() in ours
    ]

    parts = list(parts_within(stretches, ranges))

    assert [(record.offset(), list(range(*span))) for part in parts for record, span in part.spans()] == wanted
    assert count_within(stretches, ranges) == len(wanted)
    assert parts == [part for stretch in stretches for part in stretch.within(ranges)]
