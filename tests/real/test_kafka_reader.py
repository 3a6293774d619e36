"""The reader on a real broker: positions, ends, gaps, what is gone, and closing under another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from real_kafka import append, eventually, new_topic, settings_for, unique, values_in

from penstock.errors import NotFound, OffsetGone, UsageError
from penstock.kafka.reader import EARLIEST, LATEST, Reader, Received
from penstock.kafka.topics import Admin
from penstock.kafka.transactions import Transactions
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition


@pytest.fixture
def settings(penstock_broker: Any) -> KafkaSettings:
    return settings_for(penstock_broker.bootstrap)


@pytest.fixture
def admin(settings: KafkaSettings) -> Iterator[Admin]:
    with Admin(settings) as opened:
        yield opened


@pytest.fixture
def partition(admin: Admin) -> TopicPartition:
    return TopicPartition(new_topic(admin), 0)


@pytest.fixture
def reader(settings: KafkaSettings) -> Iterator[Reader]:
    with Reader(settings, group=unique("g")) as opened:
        yield opened


def numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def read_until(reader: Reader, enough: Callable[[list[Received]], bool]) -> list[Received]:
    found: list[Received] = []

    def is_enough() -> bool:
        found.extend(reader.read(100, 200))
        return enough(found)

    eventually(is_enough)
    return found


def offsets_of(records: list[Received]) -> list[int]:
    return [each.offset() for each in records]


def test_records_come_in_order_with_all_their_parts(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(250))
    reader.assign({partition: 0})

    found = read_until(reader, lambda records: len(records) >= 250)

    assert [each.value() for each in found] == numbered(250)
    assert offsets_of(found) == list(range(250))
    assert {(each.topic(), each.partition(), each.key(), each.error()) for each in found} == {(*partition, None, None)}


def test_a_record_that_arrives_is_read_long_before_the_time_out(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    reader.assign({partition: EARLIEST})
    eventually(lambda: reader.read(10, 200) == [] and reader.position(partition) == 0)
    late = threading.Timer(0.3, append, (settings, partition, b"late"))
    late.start()
    began = time.monotonic()
    found = read_until(reader, bool)
    late.join()

    assert [each.value() for each in found] == [b"late"]
    assert time.monotonic() - began < 15


def test_one_read_gives_no_more_than_was_asked_for(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(50))
    reader.assign({partition: 0})
    seen: list[int] = []
    eventually(lambda: seen.extend(len(reader.read(7, 200)) for _ in range(1)) or sum(seen) == 50)

    assert max(seen) <= 7


def test_position_passes_the_marker_and_the_aborted_records_at_the_end(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    with Transactions(settings, group="g", instance=unique("i"), announce=lambda _: None) as transactions:
        transactions.open()
        transactions.begin()
        transactions.send(*partition, b"aborted")
        transactions.send_offsets({partition: 1}, unique("g"))
        transactions.abort()
    eventually(lambda: admin.bounds([partition])[partition].stable_end == 2)
    reader.assign({partition: 0})

    eventually(lambda: reader.read(10, 200) == [] and reader.position(partition) == 2)


def test_position_starts_where_it_was_assigned_and_follows_a_seek_back(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(20))
    reader.assign({partition: 12})
    assert reader.position(partition) == 12
    read_until(reader, lambda records: len(records) >= 8)
    assert reader.position(partition) == 20

    reader.seek(partition, 3)
    assert reader.position(partition) == 3
    assert offsets_of(read_until(reader, lambda records: len(records) >= 17)) == list(range(3, 20))


def test_seek_right_after_assign_is_allowed(settings: KafkaSettings, partition: TopicPartition, reader: Reader) -> None:
    append(settings, partition, *numbered(20))
    reader.assign({partition: 0})
    reader.seek(partition, 15)

    assert offsets_of(read_until(reader, lambda records: len(records) >= 5)) == list(range(15, 20))


def test_reading_from_the_latest_gives_only_what_comes_then(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(5))
    reader.assign({partition: LATEST})
    eventually(lambda: reader.read(10, 200) == [] and reader.position(partition) == 5)
    append(settings, partition, b"new")

    assert [each.value() for each in read_until(reader, bool)] == [b"new"]


def test_a_paused_partition_gives_nothing_until_it_is_resumed_also_after_a_seek(
    admin: Admin, settings: KafkaSettings, reader: Reader
) -> None:
    topic = new_topic(admin, partitions=2)
    quiet, loud = TopicPartition(topic, 0), TopicPartition(topic, 1)
    append(settings, quiet, *numbered(5))
    reader.assign({quiet: 0, loud: 0})
    reader.pause([quiet])
    reader.seek(quiet, 2)
    append(settings, loud, *numbered(5))

    assert {each.partition() for each in read_until(reader, lambda records: len(records) >= 5)} == {1}
    reader.resume([quiet])
    assert offsets_of(read_until(reader, lambda records: len(records) >= 3)) == [2, 3, 4]


class LostPlace:
    """What the client says when a leader went away while it was asked about its epoch."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> None:
        return None


def test_a_client_that_lost_its_place_goes_on_from_there_and_nothing_is_skipped_or_doubled(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(5))
    reader.assign({partition: 0})
    first: list[Received] = []
    while len(first) < 2:
        first += reader.read(2 - len(first), 200)

    reader._note([LostPlace(partition)])

    assert offsets_of(read_until(reader, lambda records: len(records) >= 3)) == [2, 3, 4]


def test_a_pause_ends_with_its_assignment(settings: KafkaSettings, partition: TopicPartition, reader: Reader) -> None:
    append(settings, partition, *numbered(3))
    reader.assign({partition: 0})
    reader.pause([partition])
    reader.assign({partition: 0})

    assert offsets_of(read_until(reader, lambda records: len(records) >= 3)) == [0, 1, 2]


def test_a_position_that_was_cut_away_is_told_and_the_reader_goes_on_after_a_seek(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(30))
    assert admin.cut(partition, 20) == 20
    reader.assign({partition: 5})
    with pytest.raises(OffsetGone) as gone:
        eventually(lambda: reader.read(10, 200))
    assert (gone.value.topic, gone.value.partition, gone.value.offset) == (*partition, 5)

    reader.seek(partition, 20)
    assert offsets_of(read_until(reader, lambda records: len(records) >= 10)) == list(range(20, 30))


def test_a_position_beyond_the_end_is_told_and_the_reader_goes_on_after_an_assign(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(3))
    reader.assign({partition: 99})
    with pytest.raises(OffsetGone) as gone:
        eventually(lambda: reader.read(10, 200))
    assert gone.value.offset == 99

    reader.assign({partition: 1})
    assert offsets_of(read_until(reader, lambda records: len(records) >= 2)) == [1, 2]


def test_a_cut_under_a_reading_reader_loses_no_record_of_another_partition(
    admin: Admin, settings: KafkaSettings, reader: Reader
) -> None:
    topic = new_topic(admin, partitions=2)
    cut, whole = TopicPartition(topic, 0), TopicPartition(topic, 1)
    append(settings, cut, *numbered(10))
    append(settings, whole, *numbered(10))
    admin.cut(cut, 5)
    reader.assign({cut: 0, whole: 0})
    found: list[Received] = []

    def has_all() -> bool:
        try:
            found.extend(reader.read(3, 200))
        except OffsetGone as gone:
            reader.seek(TopicPartition(gone.topic, gone.partition), 5)
        return len(found) >= 15

    eventually(has_all)
    assert offsets_of([each for each in found if each.partition() == 1]) == list(range(10))
    assert offsets_of([each for each in found if each.partition() == 0]) == list(range(5, 10))


def test_gaps_give_exactly_their_visible_records(
    settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(9_000))
    wanted = [(0, 2), (10, 11), (5_500, 5_503), (8_998, 20_000)]

    found = offsets_of(list(reader.ranges(partition, wanted)))

    assert found == [0, 1, 10, 5_500, 5_501, 5_502, 8_998, 8_999]


def test_gaps_pass_over_what_is_invisible_or_cut_away(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition, reader: Reader
) -> None:
    append(settings, partition, *numbered(10))
    with Transactions(settings, group="g", instance=unique("i"), announce=lambda _: None) as transactions:
        transactions.open()
        transactions.begin()
        transactions.send(*partition, b"aborted")
        transactions.send_offsets({partition: 1}, unique("g"))
        transactions.abort()
    append(settings, partition, b"last")
    admin.cut(partition, 4)

    assert offsets_of(list(reader.ranges(partition, [(0, 6), (9, 20)]))) == [4, 5, 9, 12]
    assert reader.read_at(partition, 3) is None
    assert reader.read_at(partition, 10) is None
    assert reader.read_at(partition, 99) is None
    single = reader.read_at(partition, 12)
    assert single is not None
    assert single.value() == b"last"


def test_an_uncommitted_reader_sees_what_a_committed_one_does_not(
    settings: KafkaSettings, partition: TopicPartition
) -> None:
    with Transactions(settings, group="g", instance=unique("i"), announce=lambda _: None) as transactions:
        transactions.open()
        transactions.begin()
        transactions.send(*partition, b"open")
        transactions.send_offsets({partition: 1}, unique("g"))

        assert values_in(settings, partition, isolation="uncommitted") == [b"open"]
        assert values_in(settings, partition) == []


def test_offsets_are_committed_and_read_without_membership(
    admin: Admin, settings: KafkaSettings, partition: TopicPartition
) -> None:
    group = unique("g")
    with Reader(settings, group=group) as reader:
        assert reader.committed([partition]) == {}
        reader.commit({partition: 42})
        assert reader.committed([partition]) == {partition: 42}
    assert admin.group_offsets(group, [partition]) == {partition: 42}

    with Reader(settings) as nameless, pytest.raises(UsageError, match="no group"):
        nameless.commit({partition: 1})


def test_an_unknown_topic_or_partition_is_named(reader: Reader, partition: TopicPartition) -> None:
    for absent in (TopicPartition("no-such-topic", 0), TopicPartition(partition.topic, 9)):
        with pytest.raises(NotFound, match=str(absent)):
            reader.assign({absent: 0})


def test_a_reader_may_be_closed_while_another_thread_reads(settings: KafkaSettings, partition: TopicPartition) -> None:
    reader = Reader(settings)
    reader.assign({partition: 0})
    reading, outcome = threading.Event(), []

    def read_on() -> None:
        try:
            while True:
                reader.read(10, 300)
                reading.set()
        except UsageError as closed:
            outcome.append(str(closed))

    other = threading.Thread(target=read_on)
    other.start()
    assert reading.wait(60)
    reader.close()
    reader.close()
    other.join(60)

    assert not other.is_alive()
    assert outcome == ["this Reader is closed; make a new one"]
