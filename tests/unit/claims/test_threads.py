"""What one thread reads while another changes it. The other one acts at the very point where it hurts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace, TracebackType
from typing import Any, cast

import pytest

from penstock.claims import range_burying
from penstock.claims.batch import TimedBatch, Work
from penstock.claims.blocks import Block
from penstock.claims.consume import PartitionConsumption
from penstock.claims.dead_letters import DeadLetters
from penstock.claims.progress import Lot, Progress
from penstock.claims.range_burying import RangeBurying
from penstock.claims.range_consume import RangeConsumption, _fail
from penstock.claims.range_member import RangeMember
from penstock.claims.reading import Reading
from penstock.claims.records import ClaimsFounded, Slot
from penstock.claims.state import Claims
from penstock.claims.tenure import Tenure
from penstock.claims.terms import Terms
from penstock.claims.transacting import TransactionalConsumption
from penstock.errors import AccessDenied, BrokerUnavailable, Fenced, TransientError
from penstock.kafka.topics import Bounds
from penstock.ledger.clock import LocalLease
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail
from penstock.observe import events
from penstock.observe.events import subscribed
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
SLOT, OTHER = Slot("g", *A), Slot("g", *B)
TERMS = Terms(topics=("orders",))


# Ranges: what the iterating thread finds and the member's thread looks at


class Broker:
    """Knows where partitions begin."""

    def bounds(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return {place: Bounds(start=5, end=9, stable_end=9) for place in places}


class Positions:
    """A member that says how far slots are; between two answers something else may happen."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._meanwhile = meanwhile

    def position(self, slot: Slot) -> int:
        self._meanwhile()
        return 7


@pytest.fixture
def consumption() -> RangeConsumption:
    """Without its clients. It knows of one partition."""
    made = RangeConsumption.__new__(RangeConsumption)
    made._group, made._terms, made._changed = "g", TERMS, threading.Condition()
    made._starts, made._positions = {}, {}
    made._admin = cast(Any, Broker())
    found(made, A)
    return made


def found(consumption: RangeConsumption, *places: TopicPartition) -> frozenset[Slot]:
    consumption._discovery = cast(Any, SimpleNamespace(known=frozenset(places)))
    return consumption._slots()


def test_partitions_may_appear_while_the_member_looks_at_those_that_were_there(consumption: RangeConsumption) -> None:
    consumption._look(cast(Any, Positions(meanwhile=lambda: found(consumption, A, B))))

    assert consumption._positions == {A: 7}
    assert consumption._starts == {SLOT: 5, OTHER: 5}


def test_positions_may_be_added_while_they_are_shown(consumption: RangeConsumption) -> None:
    consumption._look(cast(Any, Positions()))
    shown = iter(consumption._positions)
    found(consumption, A, B)
    consumption._look(cast(Any, Positions()))

    assert list(shown) == [A]
    assert consumption._positions == {A: 7, B: 7}


class AwayTail(Tail[Claims]):
    is_away = False

    def follow(self, partitions: Iterable[int]) -> None:
        if self.is_away:
            raise BrokerUnavailable("away")
        super().follow(partitions)


@pytest.fixture
def tail() -> AwayTail:
    broker = MemoryBroker(now_ms=lambda: 1)
    broker.create("claims", 2)
    broker.create("claims.snapshots", 2)
    return AwayTail(
        broker.log("claims"),
        Snapshots(broker.log("claims.snapshots")),
        machine=Claims,
        instance="1",
        monotonic_ms=lambda: 1,
        fresh_ms=100,
        snapshot_every=10**6,
    )


def test_a_slot_whose_partition_is_not_followed_yet_has_no_position(
    tail: AwayTail, consumption: RangeConsumption
) -> None:
    member = RangeMember(
        tail,
        founded=ClaimsFounded(partitions=2, heartbeat_ms=300, window=10, delivery_limit=2),
        client="a",
        place=lambda slot, partitions: slot.partition or 0,
        monotonic_ms=lambda: 1,
    )
    tail.is_away = True
    with pytest.raises(TransientError):
        member.want(consumption._slots())
    consumption._look(member)
    tail.is_away = False
    member.want(consumption._slots())
    found(consumption, A, B)
    member.step(0)
    consumption._look(member)

    assert consumption._positions == {}


# Partitions: what workers ack while the iterating thread counts


class Guard:
    """The lock of a work, that knows whether it is held."""

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        assert not self.is_held
        self.is_held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_held = False


class Guarded(Progress):
    """To be looked at under its lock only: whoever acks changes it."""

    def __init__(self, start: int, guard: Guard) -> None:
        super().__init__(start)
        self._guard = guard

    @property
    def position(self) -> int:
        assert self._guard.is_held
        return super().position

    @property
    def outstanding_count(self) -> int:
        assert self._guard.is_held
        return super().outstanding_count


@pytest.fixture
def work() -> Work:
    guard = Guard()
    tenure = Tenure(SLOT, 1, LocalLease(lasts_ms=1), 0, 9)
    work = Work(tenure, Guarded(0, guard), 0, _lock=cast(Any, guard))
    work.handed_out(Lot([0, 1], 0, 2))
    return work


@pytest.fixture
def reading(work: Work) -> Reading:
    """Without its clients."""
    made = Reading.__new__(Reading)
    made.work, made._terms = {A: work}, TERMS
    return made


def test_whoever_reads_looks_at_the_progress_under_its_lock(reading: Reading) -> None:
    assert reading.positions() == {A: 0}
    assert not reading._is_full()
    reading._pass_invisible()


def test_whoever_consumes_looks_at_the_progress_under_its_lock(reading: Reading, work: Work) -> None:
    consumption = PartitionConsumption.__new__(PartitionConsumption)
    consumption._reading, consumption._told = reading, threading.Condition()

    assert not consumption._is_drained(work.tenure)
    assert consumption._is_told(work)


# A member that has ended


def test_a_transactional_consumer_whose_member_has_ended_says_so_before_it_waits_for_the_log() -> None:
    consumption = TransactionalConsumption.__new__(TransactionalConsumption)
    consumption._running = cast(Any, SimpleNamespace(failure=AccessDenied("no")))
    # Whoever settles it would wait for an announcement: there is nothing here that could.
    consumption._transactions = cast(Any, SimpleNamespace(is_spent=True))

    with pytest.raises(AccessDenied):
        consumption._next_batches()


# Blocks that go while somebody is at them


def test_an_overdue_block_that_is_lost_just_now_is_no_failure() -> None:
    class LostJustNow:
        is_lost = False
        asked = 0

        def fail(self) -> None:
            self.asked += 1
            raise Fenced("it passed on")

    batch = LostJustNow()
    _fail(cast(TimedBatch, batch))

    assert batch.asked == 1


def test_a_burial_is_tried_again_whatever_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: KafkaSettings) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(range_burying, "AGAIN_S", 0.0)
    monkeypatch.setattr(range_burying, "Reader", broken)
    burying = RangeBurying(KafkaSettings(), cast(DeadLetters, None), reason="it failed 5 times")
    block = Block(SLOT, 1, 3, 4, LocalLease(lasts_ms=1), is_to_bury=True)
    told: list[Any] = []

    with subscribed(told.append):
        for count in (1, 2):
            assert not burying.is_copied(block)
            for thread in threading.enumerate():
                if thread.name == f"penstock-bury-{SLOT}":
                    thread.join(60)
            assert [type(event) for event in told] == [events.BurialFailed] * count
