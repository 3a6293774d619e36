"""The producers behind all queues of a process, and what they know of topics."""

from __future__ import annotations

import threading
import time
from typing import Literal, Self

from penstock.errors import PenstockError, TransientError, UsageError
from penstock.kafka.reporting import Acks, ReportingWriter
from penstock.settings import KafkaSettings, SendSettings

Durability = Literal["replicated", "leader", "none"]
"""Who has the message when a send returns: all replicas in sync, the leader alone, or perhaps nobody."""

ACKS: dict[Durability, Acks] = {"replicated": "all", "leader": "1", "none": "0"}

# How old the known number of partitions may be: a topic that grows is noticed after this time.
_PARTITIONS_AGE_S = 30.0
_PARTITIONS_RETRY_S = 5.0

# Names and lengths inside a record, and the head of its batch.
_OVERHEAD_BYTES = 4_096


class Writers:
    """The producers of one process, one for each durability, made when first used. Threads and queues share it."""

    def __init__(self, kafka: KafkaSettings, settings: SendSettings | None = None) -> None:
        self.settings = settings or SendSettings()
        self._kafka = kafka
        self._lock = threading.Lock()
        self._open: dict[Durability, ReportingWriter] = {}
        self._partitions: dict[str, tuple[int, float]] = {}
        self._is_closed = False

    def get(self, durability: Durability) -> ReportingWriter:
        """Raises UsageError after `close`."""
        writer = self._open.get(durability)
        if writer is not None and not writer.is_broken:
            return writer
        return self._renewed(durability)

    def partitions(self, topic: str, durability: Durability = "replicated") -> int:
        """How many the topic has, as known at most half a minute ago. Raises NotFound, BrokerUnavailable."""
        count, until = self._partitions.get(topic, (0, 0.0))
        now = time.monotonic()
        if now < until:
            return count
        # So that others go on with what is known while this one asks.
        self._partitions[topic] = count, now + _PARTITIONS_RETRY_S if count else 0.0
        try:
            count = self.get(durability).partitions(topic, timeout_s=self._kafka.request_timeout.seconds)
        except TransientError:
            if not count:
                raise
            # What is sent now waits until the broker is back; how many partitions it had is known.
            return count
        except PenstockError:
            self.forget(topic)
            raise
        self._partitions[topic] = count, now + _PARTITIONS_AGE_S
        return count

    def forget(self, topic: str) -> None:
        """Ask again before the next message: a partition was not there."""
        self._partitions.pop(topic, None)

    def close(self, timeout_ms: int = 5_000) -> int:
        """Wait for what is under way; returns how many messages were given up (their futures say so). Idempotent."""
        with self._lock:
            self._is_closed = True
            writers, self._open = list(self._open.values()), {}
        return sum(writer.close(timeout_ms) for writer in writers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renewed(self, durability: Durability) -> ReportingWriter:
        if durability not in ACKS:
            raise UsageError(f"there is no durability {durability!r}", next_step=f"use one of {', '.join(ACKS)}")
        with self._lock:
            if self._is_closed:
                raise UsageError("sending is over: this application was closed", next_step="send before you close it")
            spent = self._open.get(durability)
            if spent is not None and not spent.is_broken:
                return spent
            self._open[durability] = fresh = ReportingWriter(
                self._kafka,
                acks=ACKS[durability],
                timeout=self.settings.timeout,
                record_max_bytes=_record_max_bytes(self.settings),
            )
        if spent is not None:
            # It sends nothing any more, and what it had under way is reported as it goes. Whoever is called back then
            # may send, too: so nobody is kept out meanwhile.
            spent.close(timeout_ms=0)
        return fresh


def _record_max_bytes(limits: SendSettings) -> int:
    """What the client must take so that everything within the limits goes."""
    return limits.payload_max_bytes + limits.key_max_bytes + limits.headers_max_bytes + _OVERHEAD_BYTES
