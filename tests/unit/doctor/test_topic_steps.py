from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import UsageError
from penstock.kafka.topics import TopicInfo
from penstock.ledger.topics import for_cluster, ledger_topics
from penstock.settings import LedgerSettings, Settings
from penstock.topics import create_command, needed, steps

FACTS, SNAPSHOTS = ledger_topics("orders", 4)


def info(**changes: object) -> TopicInfo:
    wanted = for_cluster(FACTS, brokers=3)
    right = TopicInfo(
        name="orders",
        topic_id="id",
        partitions=4,
        replication=3,
        config=wanted.config,
        under_replicated=(),
        leaderless=(),
    )
    return replace(right, **changes)


def test_each_ledger_and_coordination_need_facts_and_snapshots_under_the_prefix() -> None:
    settings = Settings(ledgers={"orders": LedgerSettings(partitions=4), "b": LedgerSettings()}, topic_prefix="eu.")

    assert [(spec.name, spec.partitions) for spec in needed(settings)] == [
        ("eu.orders", 4),
        ("eu.orders.snapshots", 4),
        ("eu.b", 8),
        ("eu.b.snapshots", 8),
        ("eu.penstock.claims", 8),
        ("eu.penstock.claims.snapshots", 8),
    ]


@pytest.mark.parametrize(
    "settings",
    [Settings(ledgers={"or ders": LedgerSettings()}), Settings(ledgers={"a": LedgerSettings()}, topic_prefix="[red]")],
)
def test_a_name_that_kafka_would_not_take_is_refused_before_anybody_is_asked(settings: Settings) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        needed(settings)


def test_ledgers_are_never_compacted_and_snapshots_always() -> None:
    assert FACTS.config["cleanup.policy"] == "delete"
    assert (FACTS.config["retention.ms"], FACTS.config["retention.bytes"]) == ("-1", "-1")
    assert FACTS.config["message.timestamp.type"] == "LogAppendTime"
    assert SNAPSHOTS.config["cleanup.policy"] == "compact"
    assert int(SNAPSHOTS.config["max.message.bytes"]) > 512 * 1024 + 10_000
    assert {spec.config["unclean.leader.election.enable"] for spec in (FACTS, SNAPSHOTS)} == {"false"}


@pytest.mark.parametrize(("brokers", "replication", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (9, 3, "2")])
def test_copies_follow_the_number_of_brokers(brokers: int, replication: int, in_sync: str) -> None:
    spec = for_cluster(FACTS, brokers=brokers)

    assert (spec.replication, spec.config["min.insync.replicas"]) == (replication, in_sync)


def test_what_is_right_is_left_alone() -> None:
    (step,) = steps([FACTS], {"orders": info()}, brokers=3)

    assert (step.action, step.changes, step.problems) == ("none", (), ())


def test_what_is_missing_is_created_and_what_differs_altered() -> None:
    differs = info(config={**info().config, "retention.ms": "604800000"})

    facts, snapshots = steps([FACTS, SNAPSHOTS], {"orders": differs}, brokers=3)

    assert (facts.action, [tuple(change) for change in facts.changes]) == (
        "alter",
        [("retention.ms", "604800000", "-1")],
    )
    assert snapshots.action == "create"


@pytest.mark.parametrize("partitions", [3, 5])
def test_another_number_of_partitions_is_refused_whatever_else_is_wrong(partitions: int) -> None:
    (step,) = steps([FACTS], {"orders": info(partitions=partitions, config={})}, brokers=3)

    assert step.action == "refuse"
    assert f"has {partitions} partitions, the configuration says 4" in step.problems[0]


def test_more_than_is_asked_for_is_good_enough() -> None:
    more = info(config={**info().config, "min.insync.replicas": "3"})

    (step,) = steps([FACTS], {"orders": more}, brokers=3)

    assert step.action == "none"


def test_a_topic_with_one_copy_is_not_told_to_wait_for_two_in_sync() -> None:
    config = {**info().config, "min.insync.replicas": "1"}

    (step,) = steps([FACTS], {"orders": info(replication=1, config=config)}, brokers=3)

    assert step.changes == ()
    assert step.problems == ("orders has 1 of 3 copies",)


def test_commands_for_kafkas_own_tools_quote_what_a_shell_would_take_apart() -> None:
    spec = replace(for_cluster(FACTS, brokers=3), config={"a": "x y"})

    assert create_command(spec) == (
        'kafka-topics.sh --bootstrap-server "$BOOTSTRAP" --create --if-not-exists --topic orders --partitions 4 '
        "--replication-factor 3 --config 'a=x y'"
    )
