"""Writing records: an idempotent producer that tells of failures only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import PenstockError, TransientError, UsageError
from penstock.kafka.errors import ConnectionWatch, error_of, served, translated
from penstock.kafka.properties import connect, properties
from penstock.observe.events import AppendFailed, tell
from penstock.settings import KafkaSettings

Headers = Sequence[tuple[str, bytes | None]]


class Failed(NamedTuple):
    """A record that the client gave up; whether it is in the log only reading back can tell."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    reason: PenstockError


class Writer:
    """Appends records, each once (idempotent), acknowledged by all replicas in sync. Several threads may send."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        linger_ms: float = 2,
        on_failure: Callable[[Failed], None] | None = None,
    ) -> None:
        self._timeout_s = settings.request_timeout.seconds
        self._watch = ConnectionWatch(settings.bootstrap_servers)
        self._on_failure = on_failure
        self._failures = 0
        config = properties(
            settings,
            preferred={
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 262_144,
            },
            fixed={
                "enable.idempotence": True,
                "acks": "all",
                # Successes then cost no Python at all.
                "delivery.report.only.error": True,
            },
        )
        config["on_delivery"] = self._delivered
        self._client: Any = connect(confluent_kafka.Producer, config, self._watch)
        self._produce: Callable[..., None] = self._client.produce

    @property
    def failures(self) -> int:
        """How many records the client has given up so far."""
        return self._failures

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Queue a record; whether it was appended is known when it is read back.

        Raises UsageError for one that is too large, NotFound for a partition that the topic does not have,
        TransientError when the queue stays full.
        """
        try:
            if headers is None:
                # The usual case, without a detour: this call is what an append costs.
                self._produce(topic, value, key, partition)
            else:
                self._produce(topic, value, key, partition, headers=list(headers))
        except BufferError:
            self._send_when_room(topic, partition, value, key, headers)
        except KafkaException as failure:
            if error_of(failure).code() != KafkaError._UNKNOWN_PARTITION:
                raise self._translated(failure, appending(topic, partition, value)) from failure
            # The client remembers how many partitions a topic had; somebody may have added some.
            self._look_again(topic)
            self._send_when_room(topic, partition, value, key, headers)

    def _look_again(self, topic: str) -> None:
        client = self._open_client()
        try:
            served(lambda: client.list_topics(topic, timeout=self._timeout_s))
        except KafkaException as failure:
            raise self._translated(failure, f"looking at {topic}") from failure

    def _send_when_room(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers | None
    ) -> None:
        try:
            enqueue(self._open_client(), topic, partition, value, key, headers, timeout_s=self._timeout_s)
        except KafkaException as failure:
            raise self._translated(failure, appending(topic, partition, value)) from failure

    def poll(self) -> None:
        """Hear of failures, without waiting."""
        client = self._open_client()
        try:
            served(lambda: client.poll(0))
        except KafkaException as failure:
            raise self._translated(failure, "writing") from failure

    def flush(self, timeout_ms: int) -> int:
        """Wait until all is acknowledged or given up; returns how many records are still under way."""
        client = self._open_client()
        try:
            return int(served(lambda: client.flush(timeout_ms / 1_000)))
        except KafkaException as failure:
            raise self._translated(failure, "flushing what was sent") from failure

    def close(self, timeout_ms: int = 5_000) -> int:
        """Flush, then end; returns how many records were still under way and are given up. Idempotent."""
        if self._client is None:
            return 0
        try:
            left = self.flush(timeout_ms)
            if left:
                self._client.purge()
                self.flush(1_000)
            return left
        finally:
            self._client = None
            self._produce = self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_client(self) -> Any:
        if self._client is None:
            self._closed()
        return self._client

    def _closed(self, *_: object, **__: object) -> NoReturn:
        raise UsageError("this Writer is closed", next_step="make a new one")

    def _delivered(self, error: KafkaError | None, record: Any) -> None:
        if error is None:
            return
        self._failures += 1
        topic, partition, value = record.topic(), record.partition(), record.value()
        reason = self._translated(error, appending(topic, partition, value))
        tell(AppendFailed(topic=topic, partition=partition, reason=str(reason)))
        if self._on_failure is not None:
            self._on_failure(Failed(topic, partition, record.key(), value, reason))

    def _translated(self, failure: KafkaException | KafkaError, doing: str) -> PenstockError:
        return translated(failure, doing, watch=self._watch)


def enqueue(
    client: Any,
    topic: str,
    partition: int,
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    *,
    timeout_s: float,
) -> None:
    """Give a record to a producer, and wait for room if its queue is full. Raises TransientError, KafkaException."""
    try:
        _produce(client, topic, partition, value, key, headers)
    except BufferError:
        deadline = time.monotonic() + timeout_s
        while not _found_room(client, topic, partition, value, key, headers):
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{appending(topic, partition, value)} found the send queue full for {timeout_s:g} s"
                    f" ({len(client)} records wait)",
                    next_step="send slower, check the broker, or raise queue.buffering.max.messages and .kbytes",
                ) from None


def appending(topic: str, partition: int, value: bytes | None) -> str:
    size = 0 if value is None else len(value)
    return f"appending {size} bytes to {topic}/{partition}"


def _found_room(client: Any, *record: Any) -> bool:
    served(lambda: client.poll(0.01))
    try:
        _produce(client, *record)
    except BufferError:
        return False
    return True


def _produce(
    client: Any, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers | None
) -> None:
    if headers is None:
        # Half the cost of the same call with headers=None.
        client.produce(topic, value, key, partition)
    else:
        client.produce(topic, value, key, partition, headers=list(headers))
