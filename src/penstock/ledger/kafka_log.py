"""A ledger's log on a real broker: one reader, one idempotent writer, one admin, behind the port of `log.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from penstock.errors import NotFound, Refused, TransientError
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicInfo, TopicSpec
from penstock.kafka.transactions import Transactions, fence
from penstock.kafka.writer import Failed, Writer
from penstock.ledger.log import Announce, Entry, FailureListener
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.topics import ledger_topics
from penstock.settings import KafkaSettings
from penstock.values import Bounds, TopicPartition

_PROPAGATION_S = 2.0


class KafkaLog:
    """One topic as a log. Belongs to one thread."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self.name = topic
        self.on_failure: FailureListener | None = None
        self._settings = settings
        self._reader = Reader(settings)
        self._writer = Writer(settings, on_failure=self._failed)
        self._admin = Admin(settings)

    def partition_count(self) -> int:
        return _described(self._admin, [self.name])[self.name].partitions

    def assign(self, positions: Mapping[int, int]) -> None:
        self._reader.assign({TopicPartition(self.name, partition): offset for partition, offset in positions.items()})

    def read(self, count_max: int, timeout_ms: int) -> list[Entry]:
        self._writer.poll()
        return [
            Entry(record.partition(), record.offset(), record.timestamp()[1], record.key(), record.value())
            for record in self._reader.read(count_max, timeout_ms)
        ]

    def position(self, partition: int) -> int:
        return self._reader.position(TopicPartition(self.name, partition))

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        asked = self._admin.bounds(TopicPartition(self.name, partition) for partition in partitions)
        return {where.partition: bounds for where, bounds in asked.items()}

    def append(self, partition: int, value: bytes | None, key: bytes | None = None) -> None:
        self._writer.send(self.name, partition, value, key=key)

    def flush(self, timeout_ms: int) -> None:
        left = self._writer.flush(timeout_ms)
        if left:
            raise TransientError(
                f"{left} records to {self.name} were not acknowledged within {timeout_ms} ms",
                next_step="check the broker (`penstock doctor`); they may still arrive",
            )

    def cut(self, partition: int, before: int) -> None:
        self._admin.cut(TopicPartition(self.name, partition), before)

    def transactions(self, *, group: str, instance: str, announce: Announce) -> Transactions:
        return Transactions(self._settings, group=group, instance=instance, announce=announce)

    def fence(self, transactional_id: str) -> None:
        fence(self._settings, transactional_id)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        self._admin.close()

    def _failed(self, failed: Failed) -> None:
        if self.on_failure is not None:
            self.on_failure(failed.partition, failed.key, failed.reason.what)


def open_ledger(settings: KafkaSettings, name: str, *, was_made: bool = False) -> tuple[KafkaLog, Snapshots]:
    """The log and the snapshots of a ledger, if its topics are as they must be.

    Who knows that its topics were made waits longer for them to be seen. Raises NotFound when one is missing, Refused
    when a setting of one would break the ledger's promises.
    """
    specs = ledger_topics(name, partitions=1)
    with Admin(settings) as admin:
        within_s = settings.request_timeout.seconds if was_made else _PROPAGATION_S
        found = _described(admin, [spec.name for spec in specs], within_s)
    for spec in specs:
        _check(spec, found[spec.name])
    return KafkaLog(settings, specs[0].name), Snapshots(KafkaLog(settings, specs[1].name))


def _described(admin: Admin, names: list[str], within_s: float = _PROPAGATION_S) -> dict[str, TopicInfo]:
    """All of these topics; one that was made a moment ago may not be known to every broker yet."""
    deadline = time.monotonic() + within_s
    while True:
        found = admin.describe(names)
        missing = [name for name in names if name not in found]
        if not missing:
            return found
        if time.monotonic() > deadline:
            raise NotFound(f"there is no topic {missing[0]}", next_step="make the topics with `penstock topics apply`")
        time.sleep(0.05)


def _check(spec: TopicSpec, info: TopicInfo) -> None:
    wrong = {key: info.config.get(key) for key, value in spec.config.items() if info.config.get(key) != value}
    if wrong:
        listed = ", ".join(f"{key}={value} (must be {spec.config[key]})" for key, value in sorted(wrong.items()))
        raise Refused(
            f"topic {info.name} would not keep a ledger's promises: {listed}", next_step="run `penstock doctor --fix`"
        )
