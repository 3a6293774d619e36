from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.claims.records import ClaimsFounded
from penstock.doctor.findings import Disk, Finding, Founded, LedgerClock, Seen, Status, furthest, judged, verdict_of
from penstock.errors import BrokerUnavailable, CheckFailed
from penstock.kafka.topics import BrokerInfo, ClusterInfo, TopicInfo, TopicSpec
from penstock.ledger.topics import for_cluster, ledger_topics

NOW_MS = 1_700_000_000_000
GB = 1024**3


def cluster_of(brokers: int) -> ClusterInfo:
    nodes = tuple(BrokerInfo(id=n, host="h", port=n) for n in range(brokers))
    return ClusterInfo(cluster_id="c", brokers=nodes, controller_id=0, version="4.3")


def as_it_should_be(spec: TopicSpec, *, brokers: int) -> TopicInfo:
    wanted = for_cluster(spec, brokers=brokers)
    return TopicInfo(
        name=spec.name,
        topic_id="id",
        partitions=spec.partitions,
        replication=wanted.replication or 0,
        config=wanted.config,
        under_replicated=(),
        leaderless=(),
    )


def healthy(brokers: int = 3) -> Seen:
    specs = ledger_topics("orders", 4)
    return Seen(
        python=(3, 11, 7),
        java="Java 17",
        jars="45 jars",
        disks=(Disk("cache", Path("/c"), 50 * GB),),
        bootstrap_servers="h:1",
        cluster=cluster_of(brokers),
        specs=specs,
        topics={spec.name: as_it_should_be(spec, brokers=brokers) for spec in specs},
        clocks=(LedgerClock("orders", 0, NOW_MS - 5),),
        now_ms=NOW_MS,
    )


def finding(seen: Seen, name: str) -> Finding:
    return next(found for found in judged(seen) if found.name == name)


def test_three_healthy_brokers_and_right_topics_are_green_throughout() -> None:
    findings = judged(healthy())

    assert {found.status for found in findings} == {Status.GREEN}
    assert verdict_of(findings) is None


def test_a_coordination_ledger_that_was_founded_otherwise_is_red_with_the_settings_that_mend_it() -> None:
    ours = ClaimsFounded(partitions=2, heartbeat_ms=2_000, window=100, delivery_limit=5)
    theirs = ClaimsFounded(partitions=2, heartbeat_ms=5_000, window=100, delivery_limit=5)
    name = "genesis: penstock.claims"

    found = finding(replace(healthy(), founded=Founded("penstock.claims", ours, {0: ours, 1: theirs})), name)
    assert found.status is Status.RED
    assert "partition 1" in found.what
    assert "heartbeat_ms 5000, the settings say 2000" in found.what
    assert 'heartbeat = "5s"' in found.mend

    fine = finding(replace(healthy(), founded=Founded("penstock.claims", ours, {0: ours, 1: None})), name)
    assert (fine.status, fine.what) == (Status.GREEN, "founded as the settings say")
    new = finding(replace(healthy(), founded=Founded("penstock.claims", ours, {0: None})), name)
    assert (new.status, new.what) == (Status.GREEN, "not founded yet: the first member does it")


def test_one_broker_is_yellow_and_no_failure() -> None:
    findings = judged(healthy(brokers=1))

    assert [f.what for f in findings if f.status is not Status.GREEN] == ["one broker: no replication"]
    assert verdict_of(findings) is None


def test_everything_that_is_not_green_says_what_mends_it() -> None:
    broken = replace(
        healthy(),
        python=(3, 9, 1),
        java_problem=("no Java", "install it"),
        jars_problem=("3 jars missing", "fetch them"),
        disks=(Disk("cache", Path("/c"), 1), Disk("data", Path("/d"), GB)),
        topics={},
        clocks=(LedgerClock("orders", 1, NOW_MS + 10**9), LedgerClock("other", 0, NOW_MS, "too long")),
    )
    offline = replace(broken, cluster=None, topics=None, unreachable=("refused", "start it"))
    unnamed = replace(broken, bootstrap_servers="", cluster=None, topics=None)

    for seen in (broken, offline, unnamed):
        assert all(found.mend for found in judged(seen) if found.status is not Status.GREEN)


@pytest.mark.parametrize("setting", sorted(ledger_topics("orders", 4)[0].config))
def test_any_ledger_setting_that_is_not_as_it_must_be_is_red(setting: str) -> None:
    seen = healthy()
    assert seen.topics is not None
    wrong = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}.get(setting, "123")
    config = {**seen.topics["orders"].config, setting: wrong}
    seen = replace(seen, topics={**seen.topics, "orders": replace(seen.topics["orders"], config=config)})

    found = finding(seen, "topic: orders")

    assert (found.status, found.mend) == (Status.RED, "penstock topics apply")
    assert setting in found.what
    assert isinstance(verdict_of(judged(seen)), CheckFailed)


def test_a_ledger_that_is_compacted_and_deleted_is_red() -> None:
    seen = healthy()
    assert seen.topics is not None
    config = {**seen.topics["orders"].config, "cleanup.policy": "compact,delete"}
    seen = replace(seen, topics={**seen.topics, "orders": replace(seen.topics["orders"], config=config)})

    assert finding(seen, "topic: orders").status is Status.RED


def test_a_missing_topic_is_red_and_made_by_topics_apply() -> None:
    found = finding(replace(healthy(), topics={}), "topic: orders.snapshots")

    assert (found.status, found.mend) == (Status.RED, "penstock topics apply")


def test_too_few_copies_where_there_are_three_brokers_are_red() -> None:
    seen = healthy()
    assert seen.topics is not None
    single = replace(seen.topics["orders"], replication=1)
    found = finding(replace(seen, topics={**seen.topics, "orders": single}), "topic: orders")

    assert found.status is Status.RED
    assert "1 of 3 copies" in found.what
    assert "kafka-reassign-partitions.sh" in found.mend


def test_partitions_that_are_not_in_sync_are_yellow_and_without_leader_red() -> None:
    seen = healthy()
    assert seen.topics is not None
    for change, status in (({"under_replicated": (1, 2)}, Status.YELLOW), ({"leaderless": (3,)}, Status.RED)):
        info = replace(seen.topics["orders"], **change)
        found = finding(replace(seen, topics={**seen.topics, "orders": info}), "replicas: orders")
        assert found.status is status


@pytest.mark.parametrize(
    ("ahead_ms", "status"),
    [(-(10**9), Status.GREEN), (0, Status.GREEN), (6_000, Status.YELLOW), (61_000, Status.RED), (10**11, Status.RED)],
)
def test_a_log_clock_in_the_future_is_found(ahead_ms: int, status: Status) -> None:
    seen = replace(healthy(), clocks=(LedgerClock("orders", 2, NOW_MS + ahead_ms),))

    found = finding(seen, "clock: orders")

    assert found.status is status
    assert ("ClockReset" in found.mend) == (status is Status.RED)


def test_a_partition_that_was_not_read_keeps_its_ledger_from_being_green() -> None:
    clock = furthest([LedgerClock("orders", 0, NOW_MS), LedgerClock("orders", 1, 0, "no leader")])
    assert clock == LedgerClock("orders", 0, NOW_MS, "no leader")

    found = finding(replace(healthy(), clocks=(clock,)), "clock: orders")

    assert found.status is Status.YELLOW
    assert "no leader" in found.what


def test_a_broker_that_does_not_answer_is_told_as_such_even_if_more_is_red() -> None:
    seen = replace(
        healthy(), python=(3, 9, 0), cluster=None, topics=None, unreachable=("h:1 refused the connection", "start it")
    )

    problem = verdict_of(judged(seen))

    assert isinstance(problem, BrokerUnavailable)
    assert problem.exit_code == 4
    assert (problem.what, problem.next_step) == ("h:1 refused the connection", "start it")


def test_without_a_named_broker_its_checks_are_skipped_and_nothing_fails() -> None:
    seen = replace(healthy(), bootstrap_servers="", cluster=None, topics=None, clocks=())

    assert finding(seen, "broker").status is Status.SKIPPED
    assert verdict_of(judged(seen)) is None


def test_whoever_has_a_kafka_needs_no_java() -> None:
    found = finding(replace(healthy(), java_problem=("no Java found", "install Java 17")), "java")

    assert found.status is Status.YELLOW
