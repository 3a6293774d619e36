"""Topics that are missing, appear, vanish and come back as others, on an admin that says what it is told to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from penstock.claims import discovery
from penstock.claims.discovery import Discovery
from penstock.errors import Refused, TransientError
from penstock.kafka.topics import Admin, TopicInfo
from penstock.observe import events
from penstock.observe.events import subscribed
from penstock.values import TopicPartition


class Broker:
    def __init__(self) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.is_away = False

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        if self.is_away:
            raise TransientError("away")
        return {name: self.topics[name] for name in names if name in self.topics}

    def make(self, name: str, topic_id: str, partitions: int = 1) -> None:
        self.topics[name] = TopicInfo(name=name, topic_id=topic_id, partitions=partitions, replication=1, config={})


@pytest.fixture
def told() -> Iterator[list[Any]]:
    seen: list[Any] = []
    with subscribed(seen.append):
        yield seen


def looking_for(broker: Broker, *topics: str) -> Discovery:
    return Discovery(cast(Admin, broker), topics, group="shop", mend=lambda topic: f"reset {topic}")


def look(found: Discovery) -> bool:
    found.hurry()
    return found.found_more()


def test_a_missing_topic_is_told_at_the_first_look_and_again_after_a_while(
    told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looking_for(Broker(), "orders")

    assert found.known == frozenset()
    assert look(found) is False
    assert told == [events.TopicMissing(group="shop", topic="orders")]
    monkeypatch.setattr(discovery, "TELL_AGAIN_S", 0.0)
    look(found)
    assert len(told) == 2


def test_a_topic_that_appears_or_grows_is_found(told: list[Any]) -> None:
    broker = Broker()
    found = looking_for(broker, "orders")
    assert found.known == frozenset()

    broker.make("orders", "id-1")
    assert look(found) is True
    assert found.known == {TopicPartition("orders", 0)}
    assert found.missing == frozenset()
    broker.make("orders", "id-1", partitions=2)
    assert look(found) is True
    assert look(found) is False


def test_a_topic_that_vanishes_stays_known_and_is_told_missing(told: list[Any]) -> None:
    broker = Broker()
    broker.make("orders", "id-1")
    found = looking_for(broker, "orders")
    assert found.known
    del broker.topics["orders"]

    assert look(found) is False
    assert found.known == {TopicPartition("orders", 0)}
    assert found.missing == {"orders"}
    assert [type(event) for event in told] == [events.TopicMissing]


def test_a_topic_that_comes_back_as_another_is_refused_at_every_look(told: list[Any]) -> None:
    broker = Broker()
    broker.make("orders", "id-1")
    found = looking_for(broker, "orders")
    assert found.known
    broker.make("orders", "id-2")

    for _ in range(2):
        with pytest.raises(Refused, match="made anew") as refusal:
            look(found)
    assert refusal.value.next_step == "reset orders"
    assert told[0] == events.TopicRecreated(group="shop", topic="orders", old_id="id-1", new_id="id-2")


def test_a_broker_that_is_away_changes_nothing(told: list[Any]) -> None:
    broker = Broker()
    broker.make("orders", "id-1")
    found = looking_for(broker, "orders")
    assert found.known
    broker.is_away = True

    assert look(found) is False
    assert found.missing == frozenset()
