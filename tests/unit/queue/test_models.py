"""What workers do around a lease: every interleaving holds with the rules, and breaks with each known shortcut."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.queue.state import QueueMachine
from penstock.testing import queue_bugs, queue_grave_bugs
from penstock.testing import queue_transactions as transactions
from penstock.testing.queue_models import Haste, Worker, WorkerModel
from penstock.testing.queue_transactions import Shortcut, TransactionModel

# At least once: order, retries, burials


ALL_OF_TWO = Worker("a", asks=((0, 2),))
FIRST_THEN_ALL = Worker("b", asks=((0, 1), (0, 2)), completes=True)
ORDER: dict[str, Any] = {"doubles": 1, "expiries": 2, "fails": False}
GRAVE: dict[str, Any] = {"messages": 1, "doubles": 1, "expiries": 1}
RETRY: dict[str, Any] = {"doubles": 0, "expiries": 1, "attempts_max": 2}
BOTH: dict[str, Any] = {"doubles": 0, "expiries": 1}

TWO = (ALL_OF_TWO, FIRST_THEN_ALL)
ONE_THAT_CRASHES = (
    Worker("a", asks=((0, 1),), lives_left=1),
    Worker("b", asks=((0, 1), (0, 1)), completes=True),
)
TWO_WITH_RENEWAL = (ALL_OF_TWO._replace(renewals_left=1), FIRST_THEN_ALL)
THREE = (
    Worker("a", asks=((0, 3),), lives_left=1),
    Worker("b", asks=((0, 1), (0, 3)), completes=True),
)


@pytest.mark.parametrize(
    ("workers", "model", "landmarks"),
    [
        (TWO, ORDER, {"late ack after a partial re-grant", "a record lands twice", "late ack after expiry"}),
        (ONE_THAT_CRASHES, GRAVE, {"burial by a zombie", "crash with records in flight", "a record lands twice"}),
        (TWO, BOTH, {"burial by a zombie", "late ack after a partial re-grant", "partial re-grant"}),
        (TWO_WITH_RENEWAL, ORDER | {"doubles": 0}, {"grant after expiry", "ack by a zombie"}),
        (TWO, RETRY, {"burial by a zombie", "grant after expiry"}),
        pytest.param(THREE, ORDER | {"messages": 3}, {"late ack after a partial re-grant"}, marks=pytest.mark.long),
        pytest.param(TWO, BOTH | {"doubles": 1}, {"late ack after a partial re-grant"}, marks=pytest.mark.long),
        pytest.param(ONE_THAT_CRASHES, GRAVE | {"expiries": 2}, {"burial by a zombie"}, marks=pytest.mark.long),
    ],
    ids=["order", "graves", "both", "renewals", "retries", "three", "both, doubled", "graves, longer"],
)
def test_nothing_is_lost_overtaken_or_buried_too_soon(
    workers: tuple[Worker, ...], model: dict[str, Any], landmarks: set[str]
) -> None:
    seen = WorkerModel(*workers, **model).search()

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    assert {name for name in landmarks if seen.landmarks[name] < 2} == set()


@pytest.mark.parametrize(
    ("haste", "workers", "model", "wrong"),
    [
        (Haste.COPIES_BEFORE_THE_VERDICT, ONE_THAT_CRASHES, GRAVE, "has a dead letter, and is acked"),
        (Haste.TELLS_OF_A_COPY_IT_HAS_NOT_MADE, ONE_THAT_CRASHES, GRAVE, "dead without a letter"),
        (Haste.HANDLES_BEHIND_ANOTHERS, TWO, ORDER, "in other hands"),
        (Haste.ACKS_BEFORE_HANDLING, TWO, ORDER, "nobody handled them"),
    ],
)
def test_a_hasty_worker_is_found(haste: Haste, workers: tuple[Worker, ...], model: dict[str, Any], wrong: str) -> None:
    fault = WorkerModel(*workers, haste=haste, **model).search().fault

    assert fault is not None
    assert wrong in fault.violation


@pytest.mark.parametrize(
    ("machine", "workers", "model", "wrong"),
    [
        (queue_bugs.LeaseDiesByHalves, TWO, ORDER, "in other hands"),
        (queue_bugs.AckUnderTheNextLease, TWO, ORDER, "in other hands"),
        (queue_bugs.AckAfterTheEnd, TWO, ORDER, "is lost"),
        (queue_bugs.AttemptChargedAtTheTake, TWO, RETRY, "were buried after"),
        (queue_bugs.EveryLossCharged, TWO, RETRY, "were buried after"),
        (queue_grave_bugs.PositionPassesBuried, ONE_THAT_CRASHES, GRAVE, "is lost"),
    ],
)
def test_a_machine_with_a_shortcut_harms_workers_that_do_no_wrong(
    machine: type[QueueMachine], workers: tuple[Worker, ...], model: dict[str, Any], wrong: str
) -> None:
    fault = WorkerModel(*workers, machine=machine, **model).search().fault

    assert fault is not None
    assert wrong in fault.violation


# Exactly once


ONE_MESSAGE = (
    transactions.Worker("a", asks=((0, 1),), renewals_left=1),
    transactions.Worker("b", asks=((0, 1), (0, 1), (0, 1))),
)
TWO_LEASES = (
    transactions.Worker("a", asks=((0, 1),)),
    transactions.Worker("b", asks=((1, 2), (0, 2), (0, 2)), crashes_left=1),
)


@pytest.mark.parametrize(
    ("workers", "model"),
    [
        (ONE_MESSAGE, {"doubles": 1}),
        (TWO_LEASES, {"messages": 2}),
        pytest.param(TWO_LEASES, {"messages": 2, "doubles": 1, "expiries": 3}, marks=pytest.mark.long),
    ],
    ids=["one message", "two leases", "two leases, doubled"],
)
def test_effects_and_acks_in_one_transaction_are_exactly_once(
    workers: tuple[transactions.Worker, ...], model: dict[str, Any]
) -> None:
    seen = TransactionModel(*workers, **model).search()

    assert seen.fault is None, str(seen.fault)
    assert seen.is_complete
    expected = {"commit", "commit after expiry, before the fence", "commit refused to a fenced producer"}
    expected |= {"lease fenced", "fence refused", "grant after a fence"}
    assert {name for name in expected if seen.landmarks[name] < 2} == set()


@pytest.mark.parametrize("shortcut", Shortcut)
def test_a_shortcut_commits_twice(shortcut: Shortcut) -> None:
    fault = TransactionModel(*TWO_LEASES, messages=2, shortcut=shortcut).search().fault

    assert fault is not None
    assert "not exactly once" in fault.violation


@pytest.mark.parametrize("machine", [queue_bugs.OneRememberedProducer, queue_bugs.UnfencedGranted])
def test_a_machine_that_forgets_a_producer_commits_twice(machine: type[QueueMachine]) -> None:
    fault = TransactionModel(*TWO_LEASES, messages=2, machine=machine).search().fault

    assert fault is not None
    assert "not exactly once" in fault.violation
