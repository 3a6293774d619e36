"""What a batch means for a table, by offsets alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Gap, Refused
from penstock.lake.offsets import (
    Batch,
    Naming,
    anchors,
    batch_of,
    from_json,
    lowest,
    plan,
    starting,
    to_json,
)
from penstock.values import Bounds, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
OTHER = TopicPartition("returns", 0)


def batch(start: int, end: int) -> Batch:
    return Batch(id=3, starts={P0: start}, ends={P0: end})


def test_a_batch_behind_what_is_stored_lands_whole_and_needs_no_filter() -> None:
    decided = plan(batch(10, 20), stored={P0: 9}, initial={P0: 0})

    assert (decided.versions, decided.above, decided.messages) == ({P0: 19}, {}, 10)


def test_a_batch_that_overlaps_lands_only_what_is_above() -> None:
    decided = plan(batch(10, 20), stored={P0: 14}, initial={P0: 0})

    assert (decided.versions, decided.above, decided.messages) == ({P0: 19}, {P0: 14}, 5)


def test_a_batch_that_the_table_has_moves_nothing_back() -> None:
    decided = plan(batch(10, 20), stored={P0: 19}, initial={P0: 0})

    assert (decided.versions, decided.messages) == ({}, 0)
    assert plan(batch(10, 20), stored={P0: 500}, initial={P0: 0}).versions == {}


def test_what_is_read_again_of_one_partition_is_dropped_while_another_moves() -> None:
    both = Batch(id=1, starts={P0: 0, P1: 0}, ends={P0: 5, P1: 5})

    decided = plan(both, stored={P0: 9}, initial={P0: 0, P1: 0})

    assert (decided.versions, decided.above) == ({P1: 4}, {P0: 4})


def test_a_batch_that_begins_too_late_is_a_gap_with_its_exact_range() -> None:
    with pytest.raises(Gap) as gap:
        plan(batch(12, 20), stored={P0: 9}, initial={P0: 0})

    assert (gap.value.topic, gap.value.partition, gap.value.first, gap.value.last) == ("orders", 0, 10, 11)


def test_a_table_without_offsets_must_see_the_partition_from_where_the_stream_began() -> None:
    assert plan(batch(7, 9), stored={}, initial={P0: 7}).versions == {P0: 8}
    with pytest.raises(Gap) as dropped:
        plan(batch(12, 20), stored={}, initial={P0: 7})
    assert (dropped.value.first, dropped.value.last) == (7, 11)


def test_a_partition_that_came_later_begins_at_zero() -> None:
    found = batch_of(4, before={P0: 5}, ends={P0: 8, P1: 3}, initial={P0: 0})

    assert found.starts == {P0: 5, P1: 0}
    assert plan(found, stored={P0: 4}, initial={P0: 0}).versions == {P0: 7, P1: 2}


def test_the_first_batch_begins_where_the_stream_began() -> None:
    assert batch_of(0, before={}, ends={P0: 8}, initial={P0: 5}).starts == {P0: 5}


def test_a_partition_that_does_not_move_is_left_alone() -> None:
    assert plan(batch(10, 10), stored={}, initial={P0: 10}) == plan(batch(10, 10), stored={P0: 9}, initial={P0: 0})
    assert plan(batch(10, 10), stored={P0: 9}, initial={P0: 0}).versions == {}


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_whatever_is_read_again_every_offset_lands_once_and_in_order(sizes: list[int], data: st.DataObject) -> None:
    """Batches come one behind the other; before each the stream may fall back to any earlier place."""
    stored: dict[TopicPartition, int] = {}
    landed: list[int] = []
    position = 0
    for number, size in enumerate(sizes):
        position = data.draw(st.integers(0, position))
        read = Batch(id=number, starts={P0: position}, ends={P0: position + size})
        decided = plan(read, stored=stored, initial={P0: 0})
        if decided.versions:
            floor = decided.above.get(P0, -1)
            landed += [offset for offset in range(position, position + size) if offset > floor]
            stored.update(decided.versions)
        position += size

    assert landed == list(range(len(landed)))
    assert stored.get(P0, -1) == len(landed) - 1


def test_a_stream_begins_behind_the_table_and_else_where_it_was_told() -> None:
    bounds = {P0: Bounds(0, 50, 50), P1: Bounds(5, 9, 9)}

    assert starting(bounds=bounds, stored={P0: 19}, initial={P0: 0, P1: 5}) == {P0: 20, P1: 5}
    assert starting(bounds=bounds, stored={P0: 49}, initial={P0: 0, P1: 9}) == {P0: 50, P1: 9}


def test_a_topic_that_lost_the_next_message_or_never_had_it_is_refused() -> None:
    with pytest.raises(Gap) as gone:
        starting(bounds={P0: Bounds(30, 50, 50)}, stored={P0: 9}, initial={P0: 0})
    assert (gone.value.first, gone.value.last) == (10, 29)
    with pytest.raises(Refused, match="not the topic that the table was filled from"):
        starting(bounds={P0: Bounds(0, 5, 5)}, stored={P0: 9}, initial={P0: 0})


def test_of_several_tables_the_one_that_is_furthest_behind_counts() -> None:
    assert lowest([{P0: 5, P1: 7}, {P0: 9}], [P0, P1]) == {P0: 5}


def test_a_beginning_elsewhere_than_at_the_first_offset_is_remembered() -> None:
    assert anchors(stored={P1: 3}, starts={P0: 10, P1: 4, OTHER: 0}) == {P0: 9}


def test_names_are_those_of_kafka_delta_ingest_unless_several_topics_share_a_table() -> None:
    assert Naming("app", with_topic=False).of(P1) == "app-1"
    assert Naming("app", with_topic=True).of(OTHER) == "app-returns-0"
    assert Naming("app", with_topic=False).dead().of(P1) == "app.dead-1"


def test_offsets_are_written_as_spark_reads_them() -> None:
    offsets = {P0: 12, P1: 0, OTHER: 3}

    assert to_json(offsets) == '{"orders": {"0": 12, "1": 0}, "returns": {"0": 3}}'
    assert from_json(to_json(offsets)) == offsets
