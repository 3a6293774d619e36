"""The reader at the tail of a ledger, on a log in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from penstock.errors import GenesisMismatch, Halted
from penstock.ledger.codec import encode, enveloped
from penstock.ledger.counter import Counter, CounterAdded, CounterFounded, CounterTaken
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import NEVER_READ_BACK, Tail, read_to_end
from penstock.observe import events
from penstock.observe.events import Event, subscribed


@dataclass
class World:
    """One ledger of two partitions, and a clock that only moves when told."""

    now_ms: int = 1_000
    broker_ahead_ms: int = 0
    broker: MemoryBroker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = MemoryBroker(now_ms=lambda: self.now_ms + self.broker_ahead_ms)
        self.broker.create("l", 2)
        self.broker.create("l.snapshots", 2)

    def tail(
        self, instance: str = "me", *, snapshot_every: int = 1_000_000, partitions: tuple[int, ...] = (0,)
    ) -> Tail[Counter]:
        tail = Tail(
            self.broker.log("l"),
            Snapshots(self.broker.log("l.snapshots")),
            machine=Counter,
            instance=instance,
            monotonic_ms=lambda: self.now_ms,
            fresh_ms=500,
            snapshot_every=snapshot_every,
        )
        tail.follow(partitions)
        return tail

    def write(self, *records: CounterFounded | CounterTaken | CounterAdded, partition: int = 0) -> None:
        for record in records:
            self.broker.append("l", partition, encode(record), None)


@pytest.fixture
def world() -> World:
    return World()


def test_a_ticket_has_its_verdict_when_its_record_was_read_back(world: World) -> None:
    tail = world.tail()
    founded, taken, refused = (
        tail.append(0, r) for r in (CounterFounded(100), CounterTaken("me"), CounterTaken("you"))
    )
    assert founded.verdict is None

    read_back = tail.step(0)

    assert [back.ticket for back in read_back] == [founded, taken, refused]
    assert taken.verdict is not None
    assert taken.verdict.is_accepted
    assert taken.offset == 1
    assert refused.verdict is not None
    assert refused.verdict.reason == "held by me"


def test_what_others_wrote_changes_the_state_and_is_not_read_back(world: World) -> None:
    tail = world.tail()
    world.write(CounterFounded(100), CounterTaken("you"))

    assert tail.step(0) == []
    assert tail.fold(0).machine.holder == "you"


def test_a_record_that_comes_back_equal_is_the_one_that_was_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = world.tail()
    tail.append(0, CounterFounded(100))
    for comes_back_equal in (False, True):
        monkeypatch.setattr(CounterTaken, "comes_back_equal", comes_back_equal)
        ticket = tail.append(0, CounterTaken("me"))
        found = tail.step(0)[-1].record
        assert found == ticket.record
        assert (found is ticket.record) == comes_back_equal


def test_a_record_under_the_key_of_ours_counts_as_it_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CounterTaken, "comes_back_equal", True)
    tail = world.tail()
    tail.append(0, CounterFounded(100))
    world.broker.append("l", 0, encode(CounterTaken("you")), b"me#2")
    tail.append(0, CounterTaken("me"))

    found = tail.step(0)

    assert [back.record for back in found[1:]] == [CounterTaken("you"), CounterTaken("me")]
    assert tail.fold(0).machine.holder == "you"


def test_a_forgotten_ticket_comes_back_without_a_ticket(world: World) -> None:
    tail = world.tail()
    tail.append(0, CounterFounded(100))
    tail.forget(tail.append(0, CounterTaken("me")))

    stray = tail.step(0)[1]

    assert stray.ticket is None
    assert stray.verdict.is_accepted


def test_a_failed_append_is_told_and_may_be_in_the_log_all_the_same(world: World) -> None:
    tail = world.tail()
    ticket = tail.append(0, CounterFounded(100))
    assert tail.log.on_failure is not None
    tail.log.on_failure(0, b"me#1", "timed out")
    assert ticket.failure == "timed out"

    tail.step(0)

    assert ticket.verdict is not None


def test_records_of_a_former_life_are_not_taken_for_ours(world: World) -> None:
    world.tail("me-1").append(0, CounterFounded(100))

    assert world.tail("me").step(0) == []


def test_partitions_are_folded_apart(world: World) -> None:
    tail = world.tail(partitions=(0, 1))
    world.write(CounterFounded(100), CounterTaken("a"))
    world.write(CounterFounded(200), CounterTaken("b"), partition=1)

    tail.step(0)

    assert (tail.fold(0).machine.holder, tail.fold(1).machine.holder) == ("a", "b")


def test_reaching_the_end_is_not_enough_without_reading_back_something_of_our_own(world: World) -> None:
    world.write(CounterFounded(100))
    tail = world.tail()
    tail.step(0)
    assert tail.is_caught_up(0)
    assert not tail.at_end(0)

    tail.append(0, CounterTaken("me"))
    tail.step(0)
    assert tail.at_end(0)

    world.now_ms += 500
    assert not tail.at_end(0)


def test_an_end_that_was_asked_for_must_be_reached(world: World) -> None:
    world.write(CounterFounded(100), CounterTaken("a"))
    tail = world.tail()

    assert not tail.is_caught_up(0)
    tail.step(0)
    assert tail.is_caught_up(0)


def test_an_open_transaction_hides_what_follows_and_ends_no_wait(world: World) -> None:
    hidden = world.broker.log("l").transactions(group="g", instance="i", announce=lambda transactional_id: None)
    hidden.open()
    hidden.begin()
    hidden.send("l", 0, encode(CounterFounded(100)))
    tail = world.tail()
    ticket = tail.append(0, CounterTaken("me"))

    tail.step(0)
    assert tail.is_caught_up(0)  # the stable end is reached ...
    assert ticket.verdict is None  # ... but our committed record is still hidden
    assert not tail.at_end(0)

    hidden.commit()
    tail.step(0)
    assert ticket.verdict is not None
    assert ticket.verdict.is_accepted


def test_that_nobody_wrote_for_an_hour_before_we_came_is_no_jump_of_the_log_clock(world: World) -> None:
    told: list[Event] = []
    world.write(CounterFounded(100), CounterTaken("a"))
    world.now_ms += 3_600_000
    tail = world.tail()
    tail.step(0)

    with subscribed(told.append):
        tail.append(0, CounterTaken("me"))
        tail.step(0)

    assert told == []
    assert tail.calm_ms(0) == 0


def test_calm_counts_from_the_end_and_starts_over_after_a_jump_of_the_log_clock(world: World) -> None:
    told: list[Event] = []
    tail = world.tail()
    tail.append(0, CounterFounded(100))
    tail.step(0)
    world.now_ms += 400
    assert tail.calm_ms(0) == 400

    world.broker_ahead_ms = 60_000
    tail.append(0, CounterTaken("me"))
    with subscribed(told.append):
        tail.step(0)

    assert tail.calm_ms(0) == 0
    assert [event.ahead_ms for event in told if isinstance(event, events.LogClockJumped)] == [60_000]
    world.now_ms += 100
    assert tail.calm_ms(0) == 100


def test_a_newer_version_halts_one_partition_and_not_the_other(world: World) -> None:
    told: list[Event] = []
    tail = world.tail(partitions=(0, 1))
    world.broker.append("l", 0, enveloped(b"?", version=9), None)
    world.write(CounterFounded(100), partition=1)

    with subscribed(told.append):
        tail.step(0)
    world.write(CounterTaken("a"), partition=1)
    tail.step(0)

    assert tail.fold(1).machine.holder == "a"
    assert [event.partition for event in told if isinstance(event, events.PartitionHalted)] == [0]
    with pytest.raises(Halted, match="ledger l partition 0 stands at offset 0: protocol version 9") as halted:
        tail.checked_fold(0)
    assert halted.value.next_step == "upgrade Penstock in this process"


def test_other_values_in_the_genesis_are_refused_with_the_command_that_mends(world: World) -> None:
    world.write(CounterFounded(100))
    tail = world.tail()
    tail.step(0)

    tail.check_genesis(0, CounterFounded(100), mend="-")
    with pytest.raises(GenesisMismatch, match="set lease to 100ms"):
        tail.check_genesis(0, CounterFounded(200), mend="set lease to 100ms")


def filled(world: World, *, snapshot_every: int = 4, count: int = 20) -> Tail[Counter]:
    """A ledger with snapshots, cut behind the second one."""
    tail = world.tail("writer", snapshot_every=snapshot_every)
    tail.append(0, CounterFounded(100))
    tail.append(0, CounterTaken("writer"))
    for number in range(count):
        tail.append(0, CounterAdded(1, number))
        tail.step(0)
        tail.keep_snapshots()
    return tail


def test_a_reader_starts_from_the_newest_snapshot(world: World) -> None:
    writer = filled(world)
    assert world.broker.partitions("l")[0].start > 0

    reader = world.tail("reader")
    read_to_end(reader, [0])

    assert reader.fold(0).hash() == writer.fold(0).hash()
    assert reader.fold(0).machine.total == 20


def test_a_reader_whose_position_was_cut_rebuilds_and_counts_the_unread_as_refused(world: World) -> None:
    slow = world.tail("slow")
    ticket = slow.append(0, CounterTaken("slow"))
    writer = filled(world)
    told: list[Event] = []

    with subscribed(told.append):
        read_back = slow.step(0)
    read_to_end(slow, [0])

    assert [back.ticket for back in read_back] == [ticket]
    assert ticket.verdict == NEVER_READ_BACK
    assert slow.fold(0).hash() == writer.fold(0).hash()
    assert any(isinstance(event, events.LedgerRebuilt) for event in told)


def test_a_log_that_is_cut_beyond_every_snapshot_is_never_an_empty_state(world: World) -> None:
    world.write(CounterFounded(100), CounterTaken("a"))
    world.broker.cut("l", 0, 1)

    tail = world.tail()

    with pytest.raises(Halted, match="the log starts there, but the newest whole snapshot ends at 0"):
        tail.checked_fold(0)


def test_a_snapshot_ahead_of_the_log_halts(world: World) -> None:
    filled(world)
    world.broker.create("l", 2)  # re-created, empty

    with pytest.raises(Halted, match="re-created or cut short"):
        world.tail().checked_fold(0)


def test_a_zombie_that_cuts_late_does_no_harm(world: World) -> None:
    filled(world)
    start = world.broker.partitions("l")[0].start

    world.broker.cut("l", 0, 3)

    assert world.broker.partitions("l")[0].start == start
    assert world.tail("reader").fold(0).halt is None


def test_following_and_leaving_partitions_keeps_the_others_where_they_are(world: World) -> None:
    tail = world.tail()
    world.write(CounterFounded(100))
    tail.step(0)
    tail.follow([1])
    world.write(CounterTaken("a"))
    tail.step(0)
    tail.leave([1])
    world.write(CounterAdded(1, 0))
    tail.step(0)

    assert tail.fold(0).machine.total == 1
