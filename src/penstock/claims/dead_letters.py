"""Copies of messages that were given up, in a topic of their own beside the one that they come from.

The key of a copy is where it comes from, so that a second copy of the same message changes nothing. What a copy looks
like to other programs is in docs/wire.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.errors import NotFound, TransientError, UsageError
from penstock.kafka.reader import Received
from penstock.kafka.topics import Admin, TopicInfo, TopicSpec
from penstock.kafka.writer import Failed, Writer
from penstock.ledger.topics import for_cluster
from penstock.settings import KafkaSettings, Settings

SUFFIX = ".dead"
TEXT_MAX_BYTES = 4_096
TOPIC_NAME_MAX = 249

# A copy is larger than its original by our headers and the original's key, which becomes one.
_ROOM_BYTES = 64 * 1024
_DEFAULT_MESSAGE_MAX = 1_048_588
_CLIENT_MESSAGE_MAX = "1000000000"


def dead_letter_topic(settings: Settings, topic: str, group: str) -> str:
    """Where the dead letters of that topic go in that group. Raises UsageError if Kafka would not take the name."""
    name = f"{settings.topic_prefix}{topic}.{group}{SUFFIX}"
    if len(name) > TOPIC_NAME_MAX:
        raise UsageError(
            f"the dead-letter topic {name} has a name of more than {TOPIC_NAME_MAX} characters",
            next_step="give the group a shorter name",
        )
    return name


class Letter(NamedTuple):
    """A message that was given up, and why."""

    record: Received
    reason: str
    error: BaseException | str | None = None
    attempts: int | None = None
    error_class: str = ""
    """Where the error is a text."""
    id: str = ""
    """Where the message came without one."""


class DeadLetters:
    """Writes them, and makes the topics on first use. Threads may share it."""

    def __init__(self, settings: Settings, *, group: str) -> None:
        self._settings, self._group = settings, group
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._writer: Writer | None = None
        self._failed: list[Failed] = []

    def bury(
        self,
        records: Sequence[Received],
        *,
        reason: str,
        error: BaseException | str | None = None,
        attempts: int | None = None,
    ) -> None:
        """Write a copy of each; returns when all are acknowledged. To do it again is no change.

        Raises TransientError if that is not known for all, NotFound if the topic that they come from is gone.
        """
        self.bury_each([Letter(record, reason, error, attempts) for record in records])

    def bury_each(self, letters: Sequence[Letter]) -> None:
        """The same for messages that were given up for different reasons."""
        if not letters:
            return
        with self._lock:
            topics = self._topics({letter.record.topic() for letter in letters})
            try:
                self._write(letters, topics)
            except NotFound:
                # The client remembers how many partitions a topic had; somebody may have added some.
                self._drop_writer()
                self._write(letters, topics)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._drop_writer()
            admin, self._admin = self._admin, None
            if admin is not None:
                admin.close()

    def _write(self, letters: Sequence[Letter], topics: dict[str, tuple[str, TopicInfo]]) -> None:
        writer = self._open_writer()
        self._failed.clear()
        for letter in letters:
            record = letter.record
            name, origin = topics[record.topic()]
            value = record.value()
            writer.send(
                name,
                record.partition(),
                # Compaction would take a copy without a value for the order to forget it.
                b"" if value is None else value,
                key=origin_key(record, origin.topic_id),
                headers=[*(record.headers() or []), *_origin(record, origin), *self._about(letter)],
            )
        self._wait(writer)

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _wait(self, writer: Writer) -> None:
        under_way = writer.flush(int(self._settings.kafka.request_timeout))
        if self._failed:
            raise self._failed[0].reason
        if under_way:
            raise TransientError(
                f"{under_way} dead letters were not acknowledged in {self._settings.kafka.request_timeout}",
                next_step="check the broker (`penstock doctor`), then try again; a second copy changes nothing",
            )

    def _about(self, letter: Letter) -> Iterator[tuple[str, bytes]]:
        if letter.id:
            yield "penstock-id", letter.id.encode()
        yield "penstock-group", self._group.encode()
        yield "penstock-reason", _text(letter.reason)
        error = letter.error
        if isinstance(error, BaseException):
            yield "penstock-error-class", _text(f"{type(error).__module__}.{type(error).__qualname__}")
            yield "penstock-error", _text(str(error))
        elif error:
            if letter.error_class:
                yield "penstock-error-class", _text(letter.error_class)
            yield "penstock-error", _text(error)
        if letter.attempts is not None:
            yield "penstock-attempts", b"%d" % letter.attempts

    def _topics(self, origins: set[str]) -> dict[str, tuple[str, TopicInfo]]:
        """The dead-letter topic of each, made or grown where needed, and what its origin is now."""
        names = {origin: dead_letter_topic(self._settings, origin, self._group) for origin in origins}
        admin = self._open_admin()
        # Asked for every time: a topic that was made anew under its old name has another id.
        there = admin.describe([*origins, *names.values()])
        if missing := sorted(origins - set(there)):
            raise NotFound(
                f"topic {missing[0]} does not exist any more",
                next_step="its messages cannot be told apart from new ones",
            )
        self._make(admin, (_spec(names[origin], there[origin]) for origin in origins if names[origin] not in there))
        for origin, name in names.items():
            if name in there and there[name].partitions < there[origin].partitions:
                admin.grow_together(name, there[origin].partitions)
        return {origin: (name, there[origin]) for origin, name in names.items()}

    def _make(self, admin: Admin, specs: Iterable[TopicSpec]) -> None:
        if wanted := list(specs):
            brokers = len(admin.cluster().brokers)
            admin.create(for_cluster(spec, brokers=brokers) for spec in wanted)

    def _open_admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._settings.kafka)
        return self._admin

    def _open_writer(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(_for_large_records(self._settings.kafka), on_failure=self._failed.append)
        return self._writer


def origin_key(record: Received, topic_id: str) -> bytes:
    """One of its own for every record that the cluster ever had; the topic's name stands in where there is no id."""
    return f"{topic_id or record.topic()}/{record.partition()}/{record.offset()}".encode()


def _origin(record: Received, info: TopicInfo) -> Iterator[tuple[str, bytes]]:
    yield "penstock-origin-topic", record.topic().encode()
    yield "penstock-origin-topic-id", info.topic_id.encode()
    yield "penstock-origin-partition", b"%d" % record.partition()
    yield "penstock-origin-offset", b"%d" % record.offset()
    yield "penstock-origin-timestamp-ms", b"%d" % record.timestamp()[1]
    key = record.key()
    if key is not None:
        yield "penstock-origin-key", key
    if record.value() is None:
        yield "penstock-origin-null-value", b"1"


def _spec(name: str, origin: TopicInfo) -> TopicSpec:
    room = int(origin.config.get("max.message.bytes", _DEFAULT_MESSAGE_MAX)) + _ROOM_BYTES
    return TopicSpec(
        name=name,
        partitions=origin.partitions,
        config={"cleanup.policy": "compact", "max.message.bytes": str(room)},
        reason=f"messages of {origin.name} that were given up",
    )


def _for_large_records(settings: KafkaSettings) -> KafkaSettings:
    """What could be read can be copied: the topic sets the limit, not the client."""
    return replace(settings, client={"message.max.bytes": _CLIENT_MESSAGE_MAX, **settings.client})


def _text(text: str) -> bytes:
    return text.encode(errors="replace")[:TEXT_MAX_BYTES].decode(errors="ignore").encode()
