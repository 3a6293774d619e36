"""A queue at work, when something ends it: whoever asks is told, and nothing is left open."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.claims.records import Slot
from penstock.errors import InvariantBroken, PenstockError, Refused
from penstock.queue import running as running_module
from penstock.queue.running import Station
from penstock.queue.solitude import Solitude
from penstock.settings import Settings
from penstock.values import Duration

BUG = KeyError("what is this")
ENDS = ["handling", "worker", "source", "clerk", "tail", "members", "upkeep"]


class Part:
    """One of what a station has around it."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.failure: PenstockError | None = None
        self._stage, self._name = stage, name

    def close(self) -> None:
        self._stage.end(self._name)


class Members(Part):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, "members")
        self.wanted: frozenset[Slot] = frozenset()

    def start(self, slots: Iterable[Slot]) -> None:
        self.want(slots)

    def want(self, slots: Iterable[Slot]) -> None:
        self.wanted = frozenset(slots)

    def stop(self, *, within_s: float) -> None:
        self.close()


class Care(Part):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, "upkeep")
        self.ledger, self.positions, self.partitions = "ledger", {}, frozenset({0})
        self.census = SimpleNamespace(count=lambda counted: None)
        self.on_growth: Callable[[frozenset[int]], None] = lambda partitions: None
        self.prepare: Callable[[], None] = lambda: None
        self.start: Callable[[], None] = lambda: None

    founded = None


class Work(Part):
    in_hand, still_steps, is_open, is_idle = 0, 0, True, True
    halted: frozenset[int] = frozenset()
    positions: dict[int, int] = {}  # noqa: RUF012
    counted = None
    is_draining = False

    def step(self, timeout_ms: int) -> None:
        self._stage.stepped.set()
        if self._stage.bug is not None:
            raise self._stage.bug

    def release_all(self) -> None:
        pass


class Handle(Part):
    def look(self) -> None:
        pass

    def stop_beginning(self) -> None:
        pass


class Stage:
    """A station whose surroundings are all made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.bug: Exception | None = None
        self.stepped = threading.Event()
        self.failure_at_end: PenstockError | None = None
        self.clerk, self.members, self.upkeep = Part(self, "clerk"), Members(self), Care(self)
        parts: dict[str, Any] = {
            "Upkeep": self.upkeep,
            "Running": self.members,
            "KafkaSource": Part(self, "source"),
            "KafkaClerk": self.clerk,
            "Worker": Work(self, "worker"),
        }
        for name, part in parts.items():
            monkeypatch.setattr(running_module, name, lambda *_, part=part, **__: part)
        monkeypatch.setattr(Station, "_opened_tail", lambda _: Part(self, "tail"))
        anything: Any = SimpleNamespace()
        handling: Any = Handle(self, "handling")
        self.station = Station(
            Settings(),
            queue="orders",
            topic="orders",
            group="g",
            terms=anything,
            handling=lambda worker: handling,
            solitude=Solitude(),
        )

    def end(self, name: str) -> None:
        if not self.ended:
            self.failure_at_end = self.station.failure
        self.ended.append(name)
        if name in self.fails:
            raise self.fails[name]

    def run(self, *, until: Callable[[], object] = lambda: None) -> PenstockError | None:
        """What the station says when it has ended."""
        self.station.start()
        until()
        assert self.station.join(60)
        return self.station.failure

    def stopped(self) -> None:
        assert self.stepped.wait(60)
        self.station.stop(Duration(0))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    thresholds = gc.get_threshold()
    yield Stage(monkeypatch)
    assert gc.get_threshold() == thresholds


def test_a_station_that_stops_closes_everything_in_order(stage: Stage) -> None:
    assert stage.run(until=stage.stopped) is None
    assert stage.ended == ENDS


@pytest.mark.parametrize("where", ENDS)
def test_everything_is_ended_whatever_one_of_them_raises(stage: Stage, where: str) -> None:
    stage.fails = {where: BUG}
    failure = stage.run(until=stage.stopped)

    assert stage.ended == ENDS
    assert stage.station.is_ready.is_set()
    assert isinstance(failure, InvariantBroken)
    assert failure.__cause__ is BUG


def test_what_goes_wrong_at_the_end_does_not_hide_what_ended_it(stage: Stage) -> None:
    stage.bug = BUG
    stage.fails = {name: Refused(name) for name in ENDS}
    failure = stage.run()

    assert failure is not None
    assert failure.__cause__ is BUG
    assert stage.failure_at_end is failure, "who waits at the handling is told why it is closed"
    assert stage.ended == ENDS


def test_what_was_opened_is_closed_when_something_cannot_be(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BUG

    monkeypatch.setattr(running_module, "Worker", fail)
    failure = stage.run()

    assert failure is not None
    assert failure.__cause__ is BUG
    assert stage.ended == ENDS[2:]


def test_a_clerk_that_ended_ends_the_queue(stage: Stage) -> None:
    stage.clerk.failure = InvariantBroken("the clerk of orders stopped")

    assert stage.run() is stage.clerk.failure


def test_a_topic_that_grows_while_its_queue_stops_is_not_claimed_again(stage: Stage) -> None:
    stage.run(until=stage.stopped)
    stage.upkeep.on_growth(frozenset({0, 1}))

    assert stage.members.wanted == frozenset()


def test_what_grew_just_before_its_queue_stops_is_given_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the upkeep stands between seeing the partitions and wanting them, while the other stops."""
    slots, growing, may_go_on = stage.station._slots, threading.Event(), threading.Event()

    def slowly() -> list[Slot]:
        found = slots()
        if threading.current_thread() is upkeep:
            growing.set()
            assert may_go_on.wait(60)
        return found

    monkeypatch.setattr(stage.station, "_slots", slowly)
    upkeep = threading.Thread(target=stage.upkeep.on_growth, args=(frozenset({0, 1}),))
    stage.station.start()
    assert stage.stepped.wait(60)
    upkeep.start()
    assert growing.wait(60)
    stage.station.stop(Duration(0))
    # It does not end without what the other has, unless it is wrong.
    stage.station.join(0.5)
    may_go_on.set()
    upkeep.join(60)
    assert stage.station.join(60)

    assert stage.members.wanted == frozenset()
