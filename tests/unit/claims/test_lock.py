"""A lock, and a job, whose thread ends, stumbles or stays: on a log in memory, where the test says what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.claims import job as job_module
from penstock.claims import lock as lock_module
from penstock.claims import running
from penstock.claims.job import Job, Run
from penstock.claims.lock import Lock
from penstock.claims.state import Claims
from penstock.claims.tenure import Listener, Tenure
from penstock.errors import AccessDenied, Fenced, TransientError
from penstock.ledger.clock import LocalLease
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import ReadBack, Tail, monotonic_ms
from penstock.settings import ClaimsSettings, Settings
from penstock.values import duration

WITHIN_S = 60
SETTINGS = Settings(claims=ClaimsSettings(partitions=1, heartbeat=duration("2s")))


class TroubledTail(Tail[Claims]):
    """One that fails when the test says so."""

    is_denied = False
    follow_failures = 0

    def step(self, timeout_ms: int) -> list[ReadBack]:
        if self.is_denied:
            raise AccessDenied("the topic is not for us any more")
        return super().step(timeout_ms)

    def follow(self, partitions: Iterable[int]) -> None:
        if self.follow_failures:
            self.follow_failures -= 1
            raise TransientError("the broker is away")
        super().follow(partitions)


class Ledger:
    """The coordination ledger in memory, and the tails that were opened on it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(now_ms=monotonic_ms)
        self.broker.create("claims", 1)
        self.broker.create("claims.snapshots", 1)
        self.tails: list[TroubledTail] = []
        self.follow_failures = 0
        self.closing: Callable[[], None] = lambda: None

    def open(self, settings: Settings, instance: str) -> TroubledTail:
        tail = TroubledTail(
            self.broker.log("claims"),
            Snapshots(self.broker.log("claims.snapshots")),
            machine=Claims,
            instance=instance,
            monotonic_ms=monotonic_ms,
            fresh_ms=1_000,
            snapshot_every=10**6,
        )
        tail.follow_failures = self.follow_failures
        tail.close = self.closing  # type: ignore[method-assign]
        self.tails.append(tail)
        return tail


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    monkeypatch.setattr(running, "opened_tail", made.open)
    return made


@pytest.fixture
def lock(ledger: Ledger) -> Iterator[Lock]:
    lock = Lock(SETTINGS, "report", client="a")
    yield lock
    lock.release()


def test_a_lock_whose_thread_has_ended_is_lost_also_while_the_clients_are_being_closed(
    ledger: Ledger, lock: Lock
) -> None:
    closes = threading.Event()
    ledger.closing = lambda: closes.wait(WITHIN_S) and None
    lock.acquire(WITHIN_S)
    ledger.tails[0].is_denied = True

    was_lost = lock.lost.wait(WITHIN_S / 6)
    closes.set()

    assert was_lost
    assert isinstance(lock.failure, AccessDenied)


def test_who_moves_the_position_of_a_lock_whose_thread_has_ended_is_told(ledger: Ledger, lock: Lock) -> None:
    token = lock.acquire(WITHIN_S)
    ledger.tails[0].is_denied = True
    outcome: list[BaseException] = []

    def move() -> None:
        try:
            lock.move_to(7)
        except Fenced as fenced:
            outcome.append(fenced)

    mover = threading.Thread(target=move, daemon=True)
    mover.start()
    mover.join(WITHIN_S / 6)

    assert [str(fenced) for fenced in outcome if f"token {token}" in str(fenced)]
    assert isinstance(outcome[0].__cause__, AccessDenied)


def test_a_lock_that_is_released_is_not_lost(ledger: Ledger, lock: Lock) -> None:
    lock.acquire(WITHIN_S)
    lock.release()

    assert not lock.lost.is_set()
    assert lock.failure is None


def test_a_lock_is_acquired_though_the_broker_was_away_at_first(ledger: Ledger, lock: Lock) -> None:
    ledger.follow_failures = 2

    lock.acquire(WITHIN_S / 6)

    assert lock.seen.position is None


def test_a_thread_that_outlives_its_acquisition_touches_no_later_one(
    ledger: Ledger, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[Listener] = []
    made = lock_module.made

    def noted(*arguments: Any, listener: Listener, **named: Any) -> Any:
        listeners.append(listener)
        return made(*arguments, listener=listener, **named)

    monkeypatch.setattr(lock_module, "made", noted)
    late = Tenure(lock.slot, lock.acquire(WITHIN_S), LocalLease(lasts_ms=1), None, None)
    lock.release()
    token = lock.acquire(WITHIN_S)

    listeners[0].lost(late, "it is late")
    listeners[0].gained(late)

    assert not lock.lost.is_set()
    assert lock.token == token > late.token
    lock.move_to(7)


def test_a_job_whose_lock_has_lost_its_thread_is_run_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_module, "_TRY_AGAIN_S", 0.01)
    runs: list[Run] = []
    has_run_again, stopping = threading.Event(), threading.Event()

    def function(run: Run) -> None:
        runs.append(run)
        if len(runs) == 1:
            ledger.tails[-1].is_denied = True
            run.lost.wait(WITHIN_S / 6)
        else:
            has_run_again.set()

    # What the ended thread held is free two heartbeats later.
    settings = Settings(claims=replace(SETTINGS.claims, heartbeat=duration("500ms")))
    job = Job(settings, "report", function, every="1000w", client="a")
    thread = threading.Thread(target=job.run_until, args=(stopping,), daemon=True)
    thread.start()
    was_run_again = has_run_again.wait(WITHIN_S / 3)
    stopping.set()
    thread.join(WITHIN_S / 3)

    assert was_run_again
    assert runs[1].token > runs[0].token
    assert "job report: trying again" in caplog.text
