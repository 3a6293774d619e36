"""What topics and groups a cluster has, and how they are made, changed and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.errors import TransientError, UsageError
from penstock.kafka.errors import error_of
from penstock.kafka.group_readers import GroupReaders
from penstock.kafka.patient import PAUSE_S, Ask, PatientClient
from penstock.kafka.reader import Reader
from penstock.kafka.release import broker_release
from penstock.settings import KafkaSettings
from penstock.values import Bounds, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """What a topic should be, and why."""

    name: str
    partitions: int
    config: Mapping[str, str]
    reason: str
    replication: int | None = None
    """None: three where there are three brokers, else as many as there are brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """What a topic is."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    under_replicated: tuple[int, ...] = ()
    """Partitions with fewer replicas in sync than they should have."""

    leaderless: tuple[int, ...] = ()


class BrokerInfo(NamedTuple):
    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    cluster_id: str
    brokers: tuple[BrokerInfo, ...]
    controller_id: int | None
    version: str | None
    """The release line of the broker that answered ("4.3"), where it could be asked for."""


class Admin:
    """Administrative calls, each bounded by `settings.request_timeout`. May be used from several threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client = PatientClient(settings)
        self._limit = self._client.limit
        self._readers = GroupReaders(settings)
        self._led_topics: set[str] = set()

    def cluster(self) -> ClusterInfo:
        """Raises BrokerUnavailable when nobody answers."""
        found = self._client.answer("asking for the cluster", lambda client: client.describe_cluster(**self._limit))
        return ClusterInfo(
            cluster_id=found.cluster_id,
            brokers=tuple(sorted(BrokerInfo(node.id, node.host, node.port) for node in found.nodes)),
            controller_id=found.controller.id if found.controller else None,
            version=broker_release(self._settings, timeout_s=self._client.timeout_s),
        )

    def names(self) -> frozenset[str]:
        """All topics but Kafka's own."""
        return frozenset(self._client.topics())

    def create(self, specs: Iterable[TopicSpec]) -> tuple[str, ...]:
        """Make what is missing and return its names; what exists is left as it is.

        Returns when every new partition has a leader, and what somebody else just made can be seen by us too: the
        controller knows of it before the other brokers do.
        """
        wanted = list(specs)
        if not wanted:
            return ()
        default = min(3, len(self._nodes()))
        new = {spec.name: _new_topic(spec, default) for spec in wanted}
        creation = self._client.asked(
            new, lambda client, names: client.create_topics([new[name] for name in names], **self._limit)
        )
        made = tuple(spec.name for spec in wanted if self._was_made(spec, creation(spec.name)))
        others = new.keys() - set(made)
        self._wait(
            f"waiting for {', '.join(new)}",
            lambda: self._are_led(made) and len(self._client.described(others)) == len(others),
        )
        return made

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """What the topics are; those that do not exist are left out."""
        found = self._client.described(names)
        if not found:
            return {}
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in found}
        settings = self._client.asked(
            resources.values(), lambda client, wanted: client.describe_configs(list(wanted), **self._limit)
        )
        infos = {}
        for name, topic in found.items():
            entries = self._client.present(f"reading the settings of {name}", settings(resources[name]))
            if entries is not None:
                infos[name] = _topic_info(topic, entries)
        return infos

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set these settings of a topic, leaving its others. Raises NotFound."""
        changes = [_setting(key, value) for key, value in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        self._client.answer(
            f"setting {_listed(config)} of topic {name}",
            lambda client: client.incremental_alter_configs([resource], **self._limit)[resource],
        )

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions; returns when they have leaders."""
        self._client.answer(
            f"growing topic {name} to {partitions} partitions",
            lambda client: client.create_partitions([NewPartitions(name, partitions)], **self._limit)[name],
        )
        self._wait(f"waiting for {partitions} partitions of {name}", lambda: self._are_led([name], partitions))

    def grow_together(self, name: str, partitions: int) -> None:
        """The same where others may be doing it too: a topic that has as many, or more, is well."""
        try:
            self.grow(name, partitions)
        except UsageError as refusal:
            cause = refusal.__cause__
            if not isinstance(cause, KafkaException) or error_of(cause).code() != KafkaError.INVALID_PARTITIONS:
                raise
            # The controller has them; another broker may hear of it a moment later.
            self._wait(f"waiting for {partitions} partitions of {name}", lambda: self._are_led([name], partitions))

    def delete(self, names: Iterable[str]) -> None:
        """Remove topics and all their records; absent ones are no error. Returns when they are gone."""
        wanted = sorted(set(names))
        if not wanted:
            return
        deletion = self._client.asked(wanted, lambda client, names: client.delete_topics(list(names), **self._limit))
        for name in wanted:
            self._client.present(f"deleting topic {name}", deletion(name))
        self._wait(f"waiting until {', '.join(wanted)} are gone", lambda: not self._client.described(wanted))

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start, last stable offset and high watermark of each. Raises NotFound for an absent partition."""
        wanted = list(partitions)
        if not wanted:
            return {}
        self._learn_leaders({each.topic for each in wanted})
        # An end that is asked for first is never beyond one that is asked for later, so start <= stable_end <= end.
        starts = self._offsets(wanted, OffsetSpec.earliest(), committed=False)
        stable_ends = self._offsets(wanted, OffsetSpec.latest(), committed=True)
        ends = self._offsets(wanted, OffsetSpec.latest(), committed=False)
        return {each: Bounds(starts[each], stable_ends[each], ends[each]) for each in wanted}

    def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """The first offset of each whose record is not older than this; partitions without one are left out."""
        wanted = list(partitions)
        self._learn_leaders({each.topic for each in wanted})
        found = self._offsets(wanted, OffsetSpec.for_timestamp(timestamp_ms), committed=False)
        return {each: offset for each, offset in found.items() if offset >= 0}

    def _learn_leaders(self, topics: set[str]) -> None:
        """The client's first question about a topic is often lost while it connects, and repeated after 3 s only."""
        for topic in topics - self._led_topics:
            self._client.topics(topic)
            self._led_topics.add(topic)

    def cut(self, partition: TopicPartition, before: int) -> int:
        """Delete the records below `before`; returns the log's new start. It never moves back."""
        target = confluent_kafka.TopicPartition(*partition, before)
        deleted = self._client.answer(
            f"cutting {partition} before offset {before}",
            lambda client: client.delete_records([target], **self._limit)[target],
            about=partition,
        )
        return int(deleted.low_watermark)

    def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that a group has committed, of all topics or of these partitions.

        Waits until no transaction is about to change them.
        """
        wanted = self._all_partitions() if partitions is None else list(partitions)
        with self._reader(group) as reader:
            return reader.committed(wanted)

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets in a group's name. Raises Refused while the group has members."""
        with self._reader(group) as reader:
            reader.commit(offsets)

    def groups(self) -> dict[str, str]:
        """Every consumer group with its state, as the broker names it."""
        found = self._client.answer("listing groups", lambda client: client.list_consumer_groups(**self._limit))
        return {each.group_id: each.state.name.lower() for each in found.valid}

    def delete_group(self, group: str) -> None:
        """Forget a group and its offsets. Raises NotFound, and Refused while it has members."""
        self._client.answer(
            f"deleting group {group}", lambda client: client.delete_consumer_groups([group], **self._limit)[group]
        )

    def close(self) -> None:
        """Idempotent."""
        self._client.close()
        self._readers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self, group: str) -> AbstractContextManager[Reader]:
        self._client.opened()  # else a closed one would open readers
        return self._readers.of(group)

    def _all_partitions(self) -> list[TopicPartition]:
        topics = self._client.topics()
        return [TopicPartition(name, each) for name, topic in topics.items() for each in topic.partitions]

    def _wait(self, doing: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._client.timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                raise TransientError(f"{doing} took more than {self._settings.request_timeout}", next_step="try again")
            time.sleep(PAUSE_S)

    def _nodes(self) -> list[Any]:
        found = self._client.answer("asking for the brokers", lambda client: client.describe_cluster(**self._limit))
        return list(found.nodes)

    def _was_made(self, spec: TopicSpec, ask: Ask) -> bool:
        try:
            self._client.answer(f"creating topic {spec.name} ({spec.partitions} partitions)", ask)
        except UsageError as refusal:
            cause = refusal.__cause__
            if isinstance(cause, KafkaException) and error_of(cause).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def _are_led(self, names: Iterable[str], partitions: int = 1) -> bool:
        wanted = list(names)
        found = self._client.described(wanted)
        return len(found) == len(wanted) and all(
            len(topic.partitions) >= partitions and all(part.leader is not None for part in topic.partitions)
            for topic in found.values()
        )

    def _offsets(self, partitions: list[TopicPartition], spec: Any, *, committed: bool) -> dict[TopicPartition, int]:
        level = confluent_kafka.IsolationLevel
        isolation = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED

        def ask(client: Any, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
            targets = {confluent_kafka.TopicPartition(*each): spec for each in wanted}
            futures = client.list_offsets(targets, isolation_level=isolation, **self._limit)
            return {TopicPartition(key.topic, key.partition): future for key, future in futures.items()}

        offset = self._client.asked(partitions, ask)
        return {
            each: int(self._client.answer(f"asking for the bounds of {each}", offset(each), about=each).offset)
            for each in partitions
        }


def _new_topic(spec: TopicSpec, default_replication: int) -> Any:
    return NewTopic(
        spec.name,
        num_partitions=spec.partitions,
        replication_factor=spec.replication or default_replication,
        config=dict(spec.config),
    )


def _topic_info(topic: Any, entries: Mapping[str, Any]) -> TopicInfo:
    partitions = topic.partitions
    return TopicInfo(
        name=topic.name,
        # The client prints ids in plain base64; every Kafka tool uses the form that is safe in URLs.
        topic_id=str(topic.topic_id).replace("+", "-").replace("/", "_"),
        partitions=len(partitions),
        replication=min((len(each.replicas) for each in partitions), default=0),
        config={name: entry.value for name, entry in entries.items() if entry.value is not None},
        under_replicated=tuple(each.id for each in partitions if len(each.isr) < len(each.replicas)),
        leaderless=tuple(each.id for each in partitions if each.leader is None),
    )


def _setting(name: str, value: str) -> Any:
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


def _listed(config: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items())
