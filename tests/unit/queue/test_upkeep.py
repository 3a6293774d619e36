"""The thread that looks after a queue's topics, when something goes wrong in it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import InvariantBroken, TransientError
from penstock.queue import upkeep as upkeep_module
from penstock.queue.upkeep import Upkeep
from penstock.settings import Settings
from penstock.values import Bounds, TopicPartition

BUG = KeyError("what is this")


class Cluster:
    """Topics that come, grow and vanish as a test says; what the upkeep asks is asked here."""

    def __init__(self) -> None:
        self.sizes = {"orders": 1, "orders.g.ledger": 9, "orders.g.ledger.snapshots": 9}
        self.known: frozenset[TopicPartition] = frozenset([TopicPartition("orders", 0)])
        self.growths: list[bool] = []
        self.fails: list[Exception] = []
        self.closed: list[str] = []

    # As Admin

    def describe(self, names: Iterable[str]) -> dict[str, Any]:
        if self.fails:
            raise self.fails.pop()
        return {
            name: SimpleNamespace(partitions=self.sizes[name], topic_id="id") for name in names if name in self.sizes
        }

    def bounds(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return {place: Bounds(0, 0, 0) for place in places}

    def close(self) -> None:
        self.closed.append("admin")

    # As Discovery

    def found_more(self) -> bool:
        return bool(self.growths) and self.growths.pop()

    def hurry(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    reader = SimpleNamespace(close=lambda: one.closed.append("reader"))
    census = SimpleNamespace(look=lambda *_: None)
    for name, value in (("Admin", one), ("Discovery", one), ("Reader", reader), ("Census", census), ("Display", None)):
        monkeypatch.setattr(upkeep_module, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(upkeep_module, "_EVERY_S", 0)
    monkeypatch.setattr(upkeep_module, "_BACK_OFF_S", 0)
    return one


def upkeep() -> Upkeep:
    return Upkeep(Settings(), queue="orders", topic="orders", group="g", starts_at_end=False)


def test_a_bug_is_told_to_whoever_asks_for_the_failure(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = upkeep()
    cluster.growths = [True]
    cluster.fails = [BUG]
    one.start()
    one._thread.join(60)

    assert isinstance(one.failure, InvariantBroken)
    assert one.failure.__cause__ is BUG
    assert str(one.failure).startswith("the upkeep of orders stopped: KeyError: 'what is this'")
    one.close()


def test_a_topic_that_vanishes_while_it_is_looked_at_may_come_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = upkeep()
    monkeypatch.setattr(one, "_make_ledger", lambda partitions: cluster.sizes.pop("orders"))
    with pytest.raises(TransientError, match="topic orders vanished while it was looked at"):
        one.prepare()

    cluster.sizes["orders"] = 1
    monkeypatch.setattr(one, "_make_ledger", lambda partitions: None)
    one.prepare()
    assert one.partitions == {0}


def test_growth_about_which_nothing_could_be_done_is_seen_to_the_next_time(cluster: Cluster) -> None:
    one = upkeep()
    one.prepare()
    grown = threading.Event()
    one.on_growth = lambda partitions: grown.set()
    cluster.known |= {TopicPartition("orders", 1)}
    cluster.growths, cluster.fails = [True], [TransientError("away")]
    one.start()

    assert grown.wait(60)
    assert one.partitions == {0, 1}
    one.close()
    assert one.failure is None


def test_everything_is_closed_whatever_one_of_them_raises(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = upkeep()

    def fail(**_: object) -> None:
        raise BUG

    monkeypatch.setattr(one, "_show", fail)
    with pytest.raises(KeyError, match="what is this"):
        one.close()

    assert cluster.closed == ["reader", "admin"]
