"""The two topics of a ledger, and the settings without which its promises do not hold."""

from __future__ import annotations

from dataclasses import replace

from penstock.kafka.topics import Admin, TopicSpec
from penstock.settings import KafkaSettings

SNAPSHOTS_SUFFIX = ".snapshots"

REPLICATION = 3
IN_SYNC_MIN = 2

_LEDGER_CONFIG = {
    "cleanup.policy": "delete",  # never compacted: every fact counts, whatever its key
    "retention.ms": "-1",  # facts leave only by a cut behind a snapshot
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",  # the log is the only clock
    "unclean.leader.election.enable": "false",
}

_SNAPSHOTS_CONFIG = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "3600000",  # a reader that began before a tombstone has an hour to finish
    "max.message.bytes": "1048588",  # a part of a snapshot has up to 512 KB
    "unclean.leader.election.enable": "false",
}


def ledger_topics(name: str, partitions: int) -> tuple[TopicSpec, TopicSpec]:
    """What the ledger topic and the topic of its snapshots should be, on a cluster of any size; see `for_cluster`."""
    facts = TopicSpec(
        name=name,
        partitions=partitions,
        config=_LEDGER_CONFIG,
        reason=f"the facts of ledger {name}: all state is rebuilt from them",
    )
    snapshots = TopicSpec(
        name=name + SNAPSHOTS_SUFFIX,
        partitions=partitions,
        config=_SNAPSHOTS_CONFIG,
        reason=f"snapshots of ledger {name}: they make replay short",
    )
    return facts, snapshots


def for_cluster(spec: TopicSpec, *, brokers: int) -> TopicSpec:
    """Fix the replication: three copies, two of them in sync, where there are three brokers; else what is possible."""
    replication = spec.replication or min(REPLICATION, max(1, brokers))
    in_sync = IN_SYNC_MIN if replication >= REPLICATION else 1
    return replace(spec, replication=replication, config={**spec.config, "min.insync.replicas": str(in_sync)})


def make_ledger(settings: KafkaSettings, name: str, *, partitions: int) -> None:
    """Make the topics of a ledger where they are missing, as safe as the cluster allows."""
    with Admin(settings) as admin:
        brokers = len(admin.cluster().brokers)
        admin.create(for_cluster(spec, brokers=brokers) for spec in ledger_topics(name, partitions))
