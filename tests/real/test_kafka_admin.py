"""Topics, groups and offsets of a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from real_kafka import append, new_topic, settings_for, unique

from penstock.errors import AccessDenied, BrokerUnavailable, NotFound, UsageError
from penstock.kafka import patient
from penstock.kafka.group_readers import GroupReaders
from penstock.kafka.topics import Admin, TopicSpec
from penstock.settings import KafkaSettings
from penstock.values import Bounds, TopicPartition, duration


@pytest.fixture
def settings(penstock_broker: Any) -> KafkaSettings:
    return settings_for(penstock_broker.bootstrap)


@pytest.fixture
def admin(settings: KafkaSettings) -> Iterator[Admin]:
    with Admin(settings) as opened:
        yield opened


def test_the_cluster_tells_its_brokers_and_its_release(admin: Admin, settings: KafkaSettings) -> None:
    cluster = admin.cluster()

    assert cluster.cluster_id
    assert f"{cluster.brokers[0].host}:{cluster.brokers[0].port}" in settings.bootstrap_servers
    assert cluster.controller_id is not None
    assert cluster.version is not None
    assert cluster.version.startswith("4.")


def test_a_topic_is_made_once_and_left_as_it_is_after_that(admin: Admin) -> None:
    name = unique("t")
    first = TopicSpec(name=name, partitions=3, config={"retention.ms": "-1"}, reason="a test")
    other = TopicSpec(name=name, partitions=5, config={"retention.ms": "7"}, reason="a test")

    assert admin.create([first]) == (name,)
    assert admin.create([other]) == ()
    assert name in admin.names()
    info = admin.describe([name, "no-such-topic"])
    assert list(info) == [name]
    assert (info[name].partitions, info[name].replication, info[name].config["retention.ms"]) == (3, 1, "-1")
    assert len(info[name].topic_id) == 22
    assert (info[name].under_replicated, info[name].leaderless) == ((), ())


def test_a_new_topic_may_be_written_at_once(admin: Admin, settings: KafkaSettings) -> None:
    for _ in range(5):
        append(settings, TopicPartition(new_topic(admin), 0), b"x")


def test_one_setting_is_altered_and_the_others_stay(admin: Admin) -> None:
    name = new_topic(admin, config={"retention.ms": "-1", "segment.ms": "100000"})
    admin.alter(name, {"retention.ms": "5000"})

    config = admin.describe([name])[name].config
    assert (config["retention.ms"], config["segment.ms"]) == ("5000", "100000")


def test_a_topic_grows_and_does_not_shrink(admin: Admin) -> None:
    name = new_topic(admin, partitions=2)
    admin.grow(name, 4)

    assert admin.describe([name])[name].partitions == 4
    with pytest.raises(UsageError, match="4 partition"):
        admin.grow(name, 2)


def test_who_grows_a_topic_together_with_others_may_come_late(admin: Admin) -> None:
    name = new_topic(admin, partitions=2)
    for partitions in (4, 4, 3):
        admin.grow_together(name, partitions)

    assert admin.describe([name])[name].partitions == 4
    with pytest.raises(NotFound):
        admin.grow_together("no-such-topic", 2)


def test_a_deleted_topic_is_gone_when_the_call_returns(admin: Admin) -> None:
    name = new_topic(admin)
    admin.delete([name, "no-such-topic"])

    assert admin.describe([name]) == {}


def test_wrong_settings_and_names_are_named(admin: Admin) -> None:
    with pytest.raises(UsageError, match=r"Unknown topic config name: retention\.mss"):
        admin.alter(new_topic(admin), {"retention.mss": "1"})
    with pytest.raises(UsageError, match="bad name"):
        admin.create([TopicSpec(name="bad name", partitions=1, config={}, reason="a test")])
    with pytest.raises(NotFound, match="no-such-topic"):
        admin.alter("no-such-topic", {"retention.ms": "1"})


def test_bounds_follow_appends_and_a_cut(admin: Admin, settings: KafkaSettings) -> None:
    topic = new_topic(admin, partitions=2)
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    append(settings, full, b"a", b"b", b"c")
    assert admin.bounds([full, empty]) == {full: Bounds(0, 3, 3), empty: Bounds(0, 0, 0)}

    assert admin.cut(full, 2) == 2
    assert admin.cut(full, 1) == 2, "the start of a log never moves back"
    assert admin.bounds([full]) == {full: Bounds(2, 3, 3)}
    with pytest.raises(UsageError, match="before offset 99"):
        admin.cut(full, 99)


def test_bounds_of_a_partition_that_does_not_exist_are_not_found(admin: Admin) -> None:
    topic = new_topic(admin)
    for absent in (TopicPartition(topic, 5), TopicPartition("no-such-topic", 0)):
        with pytest.raises(NotFound, match=str(absent)):
            admin.bounds([absent])


def test_group_offsets_are_set_read_and_forgotten(admin: Admin) -> None:
    group, topic = unique("g"), new_topic(admin, partitions=3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    assert admin.group_offsets(group) == {}
    admin.set_group_offsets(group, {first: 5, second: 7})

    assert admin.group_offsets(group) == {first: 5, second: 7}
    assert admin.group_offsets(group, [second, third]) == {second: 7}
    assert admin.groups()[group] == "empty"
    admin.delete_group(group)
    assert admin.group_offsets(group) == {}
    with pytest.raises(NotFound, match=group):
        admin.delete_group(group)


def test_a_groups_reader_stays_open_while_it_is_used_whatever_others_ask_for(
    admin: Admin, settings: KafkaSettings
) -> None:
    group, at = unique("g"), TopicPartition(new_topic(admin), 0)
    admin.set_group_offsets(group, {at: 5})
    readers = GroupReaders(settings)

    with readers.of(group) as used:
        for name in (group, *(unique("other") for _ in range(10))):
            with readers.of(name) as other:
                assert other is not used
        readers.close()
        assert used.committed([at]) == {at: 5}

    with pytest.raises(UsageError, match="closed"):
        used.committed([at])


def test_a_broker_that_is_away_is_told_within_the_time_limit() -> None:
    began = time.monotonic()
    with Admin(settings_for("127.0.0.1:1", request_timeout="500ms")) as admin:
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1.*Connection refused.*penstock doctor"):
            admin.cluster()
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            admin.names()
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            admin.bounds([TopicPartition("orders", 0)])
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("ask", [Admin.cluster, Admin.names], ids=["a question", "a list"])
def test_who_waits_for_a_broker_that_is_away_is_told_so_while_it_waits(
    ask: Callable[[Admin], object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patient, "_SILENCE_S", 0.1)
    with Admin(settings_for("127.0.0.1:1", request_timeout="1s")) as admin, pytest.raises(BrokerUnavailable):
        ask(admin)

    [told] = [each.message for each in caplog.records if each.name == "penstock.kafka"]
    assert "no answer from 127.0.0.1:1" in told
    assert "Connection refused" in told


@pytest.mark.parametrize(
    "client",
    [
        {"security.protocol": "ssl"},
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "canary-secret",
        },
    ],
    ids=["tls", "sasl"],
)
def test_a_broker_that_does_not_let_us_in_is_no_reason_to_retry(penstock_broker: Any, client: dict[str, str]) -> None:
    closed = KafkaSettings(bootstrap_servers=penstock_broker.bootstrap, client=client, request_timeout=duration("1s"))
    with Admin(closed) as admin, pytest.raises(AccessDenied, match=r"security\.protocol") as denied:
        admin.cluster()
    assert not denied.value.retriable
    assert "canary-secret" not in str(denied.value)


def test_a_closed_admin_says_so(settings: KafkaSettings) -> None:
    admin = Admin(settings)
    admin.close()
    admin.close()
    with pytest.raises(UsageError, match="this Admin is closed"):
        admin.names()
