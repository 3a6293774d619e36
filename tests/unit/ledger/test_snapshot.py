"""Snapshot + tail = full replay; only whole, undamaged snapshots count; cuts wait for two that agree with us."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger import snapshot
from penstock.ledger.codec import Record, encode
from penstock.ledger.counter import (
    Counter,
    CounterAdded,
    CounterFounded,
    CounterReleased,
    CounterRenewed,
    CounterTaken,
)
from penstock.ledger.log import Entry
from penstock.ledger.machine import ClockReset, Fold, VersionRaised
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Keeper, PartKey, Shelf, Snapshots, cut_point, split

EPOCHS = st.integers(-2, 40)

RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(CounterFounded, st.integers(-1, 500)),
    st.builds(CounterTaken, st.sampled_from("abc")),
    st.builds(CounterRenewed, EPOCHS),
    st.builds(CounterAdded, EPOCHS, st.integers(0, 3)),
    st.builds(CounterReleased, EPOCHS),
    st.builds(ClockReset, st.just("ann")),
    st.builds(VersionRaised, st.integers(-1, 1), st.just("ann")),
)
VALUES = st.one_of(RECORDS.map(encode), RECORDS.map(encode), RECORDS.map(encode), st.binary(max_size=20), st.none())
LOGS = st.lists(st.tuples(st.integers(0, 2), st.integers(-50, 2_000), VALUES), max_size=60)


def entries_of(log: list[tuple[int, int, bytes | None]]) -> list[Entry]:
    """Offsets with gaps, times that go back and forth."""
    entries, offset = [Entry(0, 0, 10, None, encode(CounterFounded(100)))], 0
    for gap, time_ms, value in log:
        offset += 1 + gap
        entries.append(Entry(0, offset, time_ms, None, value))
    return entries


def folded(entries: list[Entry], fold: Fold[Counter] | None = None) -> Fold[Counter]:
    fold = fold or Fold(Counter())
    for entry in entries:
        fold.feed(entry.offset, entry.time_ms, entry.value)
    return fold


@given(LOGS, st.data())
def test_snapshot_at_any_record_and_tail_is_the_full_replay(
    log: list[tuple[int, int, bytes | None]], data: st.DataObject
) -> None:
    entries = entries_of(log)
    at = data.draw(st.integers(1, len(entries)))
    before = folded(entries[:at])

    restored = Fold(Counter())
    restored.load(before.dump(), offset=before.next_offset - 1)
    folded(entries[at:], restored)

    full = folded(entries)
    assert restored.hash() == full.hash()
    assert restored.next_offset == full.next_offset
    assert restored.genesis == full.genesis


@given(LOGS)
def test_the_clock_and_the_epoch_never_go_down_but_by_a_reset(log: list[tuple[int, int, bytes | None]]) -> None:
    fold = Fold(Counter())
    clock_ms, epoch = 0, -1
    for entry in entries_of(log):
        judged = fold.feed(entry.offset, entry.time_ms, entry.value)
        assert fold.clock_ms >= clock_ms or isinstance(judged.record, ClockReset)
        assert fold.machine.epoch >= epoch
        clock_ms, epoch = fold.clock_ms, fold.machine.epoch


def shelf_of(*records: tuple[bytes | None, bytes | None]) -> Shelf:
    shelf = Shelf(0)
    for offset, (key, value) in enumerate(records):
        shelf.put(Entry(0, offset, 0, key, value))
    return shelf


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PART_BYTES_MAX", 4)


@pytest.mark.usefixtures("small_parts")
def test_a_snapshot_is_put_together_from_its_parts() -> None:
    parts = split(b"0123456789", partition=0, offset=7, writer="w")

    newest = shelf_of(*reversed(parts)).newest()

    assert len(parts) == 3
    assert newest is not None
    assert (newest.offset, newest.data) == (7, b"0123456789")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_snapshot_without_one_part_does_not_count(missing: int) -> None:
    older = split(b"old", partition=0, offset=3, writer="w")
    newer = split(b"0123456789", partition=0, offset=7, writer="w")
    del newer[missing]

    newest = shelf_of(*older, *newer).newest()

    assert newest is not None
    assert newest.offset == 3


@pytest.mark.usefixtures("small_parts")
def test_parts_of_two_different_states_are_not_mixed() -> None:
    one = split(b"01234567", partition=0, offset=7, writer="w")
    other = split(b"abcdefgh", partition=0, offset=7, writer="w")

    assert shelf_of(one[0], other[1]).newest() is None


def test_a_damaged_part_is_as_good_as_absent() -> None:
    [(key, value)] = split(b"state", partition=0, offset=7, writer="w")

    assert shelf_of((key, value[:-1] + b"X")).newest() is None


def test_junk_in_the_snapshots_topic_is_passed_over() -> None:
    good = split(b"state", partition=0, offset=7, writer="w")

    newest = shelf_of((None, b"x"), (b"\xc1", b"x"), (b"", None), *good, (b"rubbish", b"rubbish")).newest()

    assert newest is not None
    assert newest.offset == 7


def test_two_writers_at_one_offset_do_not_erase_each_other() -> None:
    ours = split(b"state", partition=0, offset=7, writer="a")
    theirs = split(b"state", partition=0, offset=7, writer="b")

    assert [(whole.offset, whole.writer) for whole in shelf_of(*ours, *theirs).wholes()] == [(7, "a"), (7, "b")]


def test_a_tombstone_takes_a_snapshot_away() -> None:
    parts = split(b"state", partition=0, offset=7, writer="w")

    assert shelf_of(*parts, (parts[0][0], None)).newest() is None


@pytest.mark.parametrize(
    ("wholes", "own", "point"),
    [
        ([], {}, None),
        ([(5, "h5")], {5: "h5"}, None),  # one alone is not enough
        ([(5, "h5"), (9, "h9")], {5: "h5", 9: "h9"}, 5),
        ([(5, "h5"), (9, "h9"), (9, "other")], {5: "h5", 9: "h9"}, 5),  # two at one offset are one
        ([(9, "h9"), (9, "h9")], {9: "h9"}, None),
        ([(5, "wrong"), (9, "h9")], {5: "h5", 9: "h9"}, None),  # not our state: hands off
        ([(3, "h3"), (5, "wrong"), (9, "h9")], {3: "h3", 5: "h5", 9: "h9"}, 3),
        ([(5, "h5"), (9, "h9")], {}, None),  # somebody else's, which we never folded
    ],
)
def test_the_cut_waits_for_the_second_highest_that_is_our_own_state(
    wholes: list[tuple[int, str]], own: dict[int, str], point: int | None
) -> None:
    assert cut_point(wholes, own) == point


def test_a_keeper_cuts_behind_its_second_snapshot_and_buries_the_older_ones() -> None:
    broker = MemoryBroker(now_ms=lambda: 0)
    broker.create("l", 1)
    broker.create("l.snapshots", 1)
    log, snapshots = broker.log("l"), Snapshots(broker.log("l.snapshots"))
    keeper = Keeper(log, snapshots, writer="w", every=2)
    fold = Fold(Counter())
    for number in range(8):
        record = CounterFounded(10) if number == 0 else CounterTaken("a")
        log.append(0, encode(record))
        fold.feed(number, 0, encode(record))
        if keeper.is_due(0, fold):
            keeper.keep(0, fold)

    assert log.bounds([0])[0].start == 6
    assert [whole.offset for whole in snapshots.scan(0).wholes()] == [5, 7]


def test_keys_sort_by_offset_and_round_trip() -> None:
    key = PartKey(3, 500, "w", 1)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(key)) == [3, 500, "w", 1]
