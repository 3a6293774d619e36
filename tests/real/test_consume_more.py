"""Groups on a real broker: overdue messages, dead letters, broadcasting, topics that come and go, stopping."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real_kafka import eventually

from penstock.broker import Embedded
from penstock.claims.consumption import Consumption
from penstock.claims.dead_letters import DeadLetters, dead_letter_topic
from penstock.claims.group import Group
from penstock.errors import Fenced, Refused
from penstock.kafka.reader import EARLIEST, Reader, Received
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.observe import events
from penstock.observe.events import subscribed
from penstock.observe.metrics import Metrics
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", partitions=1, heartbeat=duration("500ms")),
    )


@pytest.fixture
def admin(settings: Settings) -> Iterator[Admin]:
    with Admin(settings.kafka) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    made(admin, name, 1)
    return name


@pytest.fixture
def told() -> Iterator[list[Any]]:
    seen: list[Any] = []
    with subscribed(seen.append):
        yield seen


def made(admin: Admin, name: str, partitions: int) -> None:
    admin.create([TopicSpec(name=name, partitions=partitions, config={}, reason="a test")])


def send(settings: Settings, topic: str, *values: bytes | None, partition: int = 0) -> None:
    with Writer(settings.kafka) as writer:
        for value in values:
            writer.send(topic, partition, value, key=b"key", headers=[("colour", b"red")])
        assert writer.flush(30_000) == 0


def all_in(settings: Settings, topic: str, count: int, *, partition: int = 0) -> list[Received]:
    place, found = TopicPartition(topic, partition), list[Received]()
    with Reader(settings.kafka) as reader:
        reader.assign({place: EARLIEST})
        eventually(lambda: found.extend(reader.read(100, 100)) or len(found) >= count)
        assert reader.bounds(place)[1] == count
    return found


def of_kind(told: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in list(told) if isinstance(event, kind)]


@contextmanager
def in_thread(work: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(60)
        assert not thread.is_alive()


def test_what_was_skipped_while_the_claim_was_in_doubt_comes_again_when_it_is_ours_after_all(tmp_path: Path) -> None:
    """Nobody took over, so the next heartbeat renews the claim. What was dropped meanwhile must not be missing."""
    with Embedded(data=tmp_path) as broker:
        claims = ClaimsSettings(partitions=1, heartbeat=duration("500ms"))
        settings = Settings(kafka=KafkaSettings(bootstrap_servers=broker.bootstrap), claims=claims)
        with Admin(settings.kafka) as admin:
            made(admin, "orders", 1)
        send(settings, "orders", *(b"%d" % number for number in range(10)))
        seen: list[bytes | None] = []
        with Group(settings, "shop", client="a").consume(["orders"]) as messages:
            iteration = messages.messages(timeout_s=60)
            first = next(iteration)
            broker.stop(1)
            eventually(lambda: first.is_lost)
            broker.cont(1)
            with pytest.raises(Fenced):
                first.ack()
            token = first.token
            for message in iteration:
                assert message.token == token  # it was never anybody else's
                seen.append(message.value)
                message.ack()
                if message.offset == 9:
                    break
            with Admin(settings.kafka) as admin:
                place = TopicPartition("orders", 0)
                eventually(
                    lambda: (
                        next(messages.messages(timeout_s=0.1), None) is None
                        and admin.group_offsets("shop", [place]).get(place) == 10
                    )
                )
        assert seen == [b"%d" % number for number in range(10)]


# Overdue


def test_an_overdue_message_is_copied_with_its_origin_and_no_longer_holds_the_position(
    settings: Settings, topic: str, told: list[Any]
) -> None:
    send(settings, topic, b"one", b"two", b"three")
    with Group(settings, "shop", client="a").consume([topic], ack_timeout="500ms") as messages:
        for message in messages.messages(timeout_s=2):
            if message.offset != 1:
                message.ack()
            else:
                late = message
        eventually(lambda: messages._reading.positions() == {TopicPartition(topic, 0): 3})  # type: ignore[attr-defined]
        late.ack()  # no change

    [overdue] = of_kind(told, events.MessageOverdue)
    assert (overdue.topic, overdue.offset, overdue.way) == (topic, 1, "dead_letter")
    assert overdue.waited_ms >= 500
    [copy] = all_in(settings, dead_letter_topic(settings, topic, "shop"), 1)
    assert copy.value() == b"two"
    headers = dict(copy.headers() or [])
    assert headers["colour"] == b"red"
    assert headers["penstock-origin-key"] == b"key"
    assert headers["penstock-origin-topic"] == topic.encode()
    assert headers["penstock-origin-offset"] == b"1"
    assert headers["penstock-group"] == b"shop"
    assert headers["penstock-reason"] == b"not acked within 500ms"
    with Group(settings, "shop", client="b").consume([topic]) as messages:
        assert [message.offset for message in messages.messages(timeout_s=2)] == []


def test_an_overdue_message_is_skipped_also_while_its_handler_is_stuck_and_others_get_the_rest(
    settings: Settings, topic: str, told: list[Any]
) -> None:
    send(settings, topic, b"stuck", b"next")
    wake, first = threading.Event(), Group(settings, "shop", client="a")

    def stuck() -> None:
        with first.consume([topic], ack_timeout="500ms", on_overdue="skip") as messages:
            message = next(messages.messages())
            wake.wait(60)
            with pytest.raises(Fenced):
                message.ack()

    with in_thread(stuck):
        try:
            eventually(lambda: of_kind(told, events.MessageOverdue))
            with Group(settings, "shop", client="b").consume([topic]) as others:
                message = next(others.messages(timeout_s=30))
                assert message.value == b"next"
                message.ack()
        finally:
            wake.set()
    assert of_kind(told, events.ConsumerStalled)
    assert [event.way for event in of_kind(told, events.MessageOverdue)] == ["skip"]


@pytest.mark.parametrize("share", ["partitions", "all"])
def test_a_partition_that_is_released_for_an_overdue_message_comes_again_from_there(
    settings: Settings, topic: str, told: list[Any], share: Any
) -> None:
    send(settings, topic, b"one", b"two", b"three")
    got: list[int] = []
    group = Group(settings, "shop", client="a")
    with group.consume([topic], share=share, ack_timeout="500ms", on_overdue=lambda message: "release") as messages:
        for message in messages.messages(timeout_s=10):
            got.append(message.offset)
            if message.offset != 1 or got.count(1) == 2:
                message.ack()
            if got.count(2) == 2:
                break

    assert got == [0, 1, 2, 1, 2]
    assert [event.offset for event in of_kind(told, events.MessageOverdue)] == [1]
    assert len(of_kind(told, events.ClaimGained)) == (2 if share == "partitions" else 0)


def test_who_comes_back_late_gets_partitions_again(settings: Settings, topic: str, told: list[Any]) -> None:
    send(settings, topic, b"slow", b"next")
    with Group(settings, "shop", client="a").consume([topic], ack_timeout="300ms", on_overdue="skip") as messages:
        one_by_one = messages.messages(timeout_s=30)
        assert next(one_by_one).value == b"slow"
        eventually(lambda: of_kind(told, events.ClaimGivenBack))
        assert next(one_by_one).value == b"next"


# Dead letters


def test_a_second_burial_has_the_same_key_and_a_message_without_value_survives_compaction(
    settings: Settings, admin: Admin, topic: str
) -> None:
    send(settings, topic, b"one", None)
    records = all_in(settings, topic, 2)
    letters = DeadLetters(settings, group="shop")
    try:
        letters.bury(records, reason="no good", error=ValueError("x" * 10_000), attempts=3)
        letters.bury(records[:1], reason="no good", error=ValueError("y"), attempts=4)
    finally:
        letters.close()

    copies = all_in(settings, dead_letter_topic(settings, topic, "shop"), 3)
    topic_id = admin.describe([topic])[topic].topic_id
    assert [copy.key() for copy in copies] == [f"{topic_id}/0/{offset}".encode() for offset in (0, 1, 0)]
    headers = dict(copies[0].headers() or [])
    assert headers["penstock-error-class"] == b"builtins.ValueError"
    assert headers["penstock-error"] == b"x" * 4_096
    assert headers["penstock-attempts"] == b"3"
    assert copies[1].value() == b""
    assert dict(copies[1].headers() or [])["penstock-origin-null-value"] == b"1"
    info = admin.describe([dead_letter_topic(settings, topic, "shop")])
    assert next(iter(info.values())).config["cleanup.policy"] == "compact"


def test_the_dead_letter_topic_grows_with_its_origin(settings: Settings, admin: Admin, topic: str) -> None:
    send(settings, topic, b"one")
    letters = DeadLetters(settings, group="shop")
    try:
        letters.bury(all_in(settings, topic, 1), reason="no good")
        admin.grow(topic, 2)
        send(settings, topic, b"two", partition=1)
        letters.bury(all_in(settings, topic, 1, partition=1), reason="no good")
    finally:
        letters.close()

    assert [copy.value() for copy in all_in(settings, dead_letter_topic(settings, topic, "shop"), 1, partition=1)] == [
        b"two"
    ]


# Broadcasting


def test_broadcast_gives_every_client_everything_once_and_goes_on_where_it_stopped(
    settings: Settings, admin: Admin, topic: str
) -> None:
    admin.grow(topic, 2)
    send(settings, topic, b"1", b"2")
    send(settings, topic, b"3", partition=1)

    def read(client: str) -> list[bytes | None]:
        values = []
        with Group(settings, "news", client=client).consume([topic], share="all") as messages:
            for message in messages.messages(timeout_s=1):
                values.append(message.value)
                message.ack()
        return sorted(value for value in values if value is not None)

    assert read("a") == read("b") == [b"1", b"2", b"3"]
    send(settings, topic, b"4")
    assert read("a") == [b"4"]
    assert admin.group_offsets("news.a", [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 3}
    assert read("b") == [b"4"]


def test_a_broadcast_message_that_is_not_acked_comes_again_to_the_same_client(settings: Settings, topic: str) -> None:
    send(settings, topic, b"1", b"2", b"3")
    with Group(settings, "news", client="a").consume([topic], share="all") as messages:
        for message in messages.messages(timeout_s=1):
            if message.offset != 1:
                message.ack()
    with Group(settings, "news", client="a").consume([topic], share="all") as messages:
        assert [message.offset for message in messages.messages(timeout_s=1)] == [1, 2]


# Topics that come and go


@pytest.mark.parametrize("share", ["partitions", "all"])
def test_a_topic_that_is_missing_is_told_and_consumed_when_it_appears(
    settings: Settings, admin: Admin, told: list[Any], share: Any
) -> None:
    name = f"later-{uuid.uuid4().hex[:8]}"
    with Group(settings, "shop", client="a").consume([name], share=share) as messages:
        assert [event.topic for event in of_kind(told, events.TopicMissing)] == [name]
        assert list(messages.messages(timeout_s=0.2)) == []
        made(admin, name, 1)
        send(settings, name, b"at last")
        assert next(messages.messages(timeout_s=30)).value == b"at last"
    assert len(of_kind(told, events.TopicMissing)) == 1


def test_a_topic_that_was_made_anew_under_a_consumer_is_refused(
    settings: Settings, admin: Admin, topic: str, told: list[Any]
) -> None:
    send(settings, topic, b"1", b"2")
    with Group(settings, "shop", client="a").consume([topic]) as messages:
        for message in messages.messages(timeout_s=1):
            message.ack()
        admin.delete([topic])
        assert list(messages.messages(timeout_s=6)) == []
        eventually(lambda: of_kind(told, events.TopicMissing))
        made(admin, topic, 1)
        send(settings, topic, b"new")
        with pytest.raises(Refused, match="was deleted and made anew"):
            list(messages.messages(timeout_s=30))
    assert of_kind(told, events.TopicRecreated)

    with (
        Group(settings, "shop", client="b").consume([topic]) as messages,
        pytest.raises(Refused, match="the log ends at 1") as refusal,
    ):
        list(messages.messages(timeout_s=30))
    assert "penstock claims reset" in refusal.value.next_step


# Iterating and stopping


def test_an_iteration_that_was_broken_off_goes_on_with_the_next(settings: Settings, topic: str) -> None:
    send(settings, topic, *(b"%d" % number for number in range(10)))
    with Group(settings, "shop", client="a").consume([topic]) as messages:
        first = next(messages.messages(timeout_s=30))
        rest = list(messages.messages(timeout_s=1))
    assert [message.offset for message in [first, *rest]] == list(range(10))


@pytest.mark.parametrize("share", ["partitions", "all"])
def test_stop_from_another_thread_ends_the_iteration_and_what_was_not_handed_out_stays(
    settings: Settings, topic: str, share: Any
) -> None:
    send(settings, topic, *(b"%d" % number for number in range(100)))
    group, got, offsets = Group(settings, "shop", client="a"), threading.Event(), list[int]()
    messages: Consumption = group.consume([topic], share=share)
    stopped = threading.Event()

    def work() -> None:
        with messages:
            for message in messages:
                offsets.append(message.offset)
                message.ack()
                if len(offsets) == 10:
                    got.set()
                    stopped.wait(60)

    with in_thread(work):
        assert got.wait(60)
        messages.stop()
        stopped.set()
    assert offsets == list(range(10))
    with group.consume([topic], share=share) as others:
        assert next(others.messages(timeout_s=30)).offset == 10


def test_closing_from_another_thread_ends_an_iteration_that_waits(settings: Settings, topic: str) -> None:
    messages = Group(settings, "shop", client="a").consume([topic])
    began = threading.Event()

    def work() -> None:
        with messages:
            began.set()
            assert list(messages) == []

    with in_thread(work):
        assert began.wait(60)
        eventually(lambda: messages.partitions)
        messages.close()


# Metrics


def test_the_metric_shows_slots_in_the_words_of_the_commands(settings: Settings, topic: str) -> None:
    metrics = Metrics()

    def value(state: str) -> float | None:
        return metrics.registry.get_sample_value("penstock_claims", {"group": "shop", "state": state})

    with subscribed(metrics), Group(settings, "shop", client="a").consume([topic]) as messages:
        eventually(lambda: list(messages.messages(timeout_s=0.1)) == [] and value("fresh") == 1)
        assert value("free") == value("silent") == value("paused") == 0
    assert metrics.registry.get_sample_value("penstock_claims_gained_total") == 1
    assert metrics.registry.get_sample_value("penstock_claims_given_back_total") == 1
