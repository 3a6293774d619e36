"""Three embedded brokers as one cluster: what fault tests do to it, and that it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic
from real_kafka import eventually

from penstock.broker import Embedded
from penstock.errors import UsageError

TOPIC = "replicated"


@pytest.fixture(scope="module")
def kafka() -> Iterator[Embedded]:
    with Embedded(brokers=3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        # Neither partitions' replicas nor anything else is said: the cluster's own defaults are on trial.
        admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(30)
        yield cluster


@pytest.fixture
def admin(kafka: Embedded) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


def _in_sync(admin: AdminClient) -> list[list[int]]:
    partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return [sorted(partitions[number].isrs) for number in sorted(partitions)]


def _all_in_sync(admin: AdminClient) -> bool:
    return _in_sync(admin) == [[1, 2, 3]] * 3


def _produce_everywhere(bootstrap: str, count: int) -> None:
    """Acknowledged by all replicas in sync, in every partition; so every partition has a live leader."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(
            TOPIC, b"x", partition=number % 3, on_delivery=lambda error, _: error and failures.append(error)
        )
    assert producer.flush(70) == 0
    assert not failures


def _config(admin: AdminClient) -> dict[str, ConfigEntry]:
    """As soon as the node that is asked has heard of the topic."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    found: list[dict[str, ConfigEntry]] = []

    def is_known() -> bool:
        try:
            found.append(admin.describe_configs([resource])[resource].result(30))
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        return bool(found)

    eventually(is_known)
    return found[0]


def test_topics_are_replicated_three_times_and_need_two(admin: AdminClient) -> None:
    config = _config(admin)

    assert config["min.insync.replicas"].value == "2"
    assert config["unclean.leader.election.enable"].value == "false"
    eventually(lambda: _all_in_sync(admin))


def test_with_one_node_killed_work_goes_on_and_it_comes_back_in_sync(kafka: Embedded, admin: AdminClient) -> None:
    kafka.kill(2)

    _produce_everywhere(kafka.bootstrap, 300)
    eventually(lambda: all(2 not in replicas for replicas in _in_sync(admin)))

    kafka.start(2)
    eventually(lambda: _all_in_sync(admin))


def test_a_paused_node_is_left_behind_and_catches_up(kafka: Embedded, admin: AdminClient) -> None:
    kafka.stop(3)
    assert kafka.nodes[2].is_running

    _produce_everywhere(",".join(node.bootstrap for node in kafka.nodes[:2]), 300)
    others = AdminClient({"bootstrap.servers": kafka.nodes[0].bootstrap})
    eventually(lambda: all(3 not in replicas for replicas in _in_sync(others)))

    kafka.cont(3)
    eventually(lambda: _all_in_sync(admin))


def test_all_nodes_killed_at_once_come_back_with_everything(kafka: Embedded, admin: AdminClient) -> None:
    _produce_everywhere(kafka.bootstrap, 300)
    for number in (1, 2, 3):
        kafka.kill(number)

    kafka.start(1, wait=False)
    with pytest.raises(UsageError, match="node 1 runs already"):
        kafka.start(1)
    kafka.start()
    kafka.wait_until_ready()

    eventually(lambda: _all_in_sync(admin))
    _produce_everywhere(kafka.bootstrap, 3)


def test_there_is_no_fourth_node(kafka: Embedded) -> None:
    with pytest.raises(UsageError, match=r"no node 4.*1 to 3"):
        kafka.kill(4)
