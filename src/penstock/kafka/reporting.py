"""Writing records and hearing of each what became of it: a producer, and a thread that listens to the answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import NotFound, PenstockError, TransientError, UsageError
from penstock.kafka.errors import ConnectionWatch, error_of, may_have_happened, served, translated
from penstock.kafka.properties import connect, properties
from penstock.kafka.writer import Headers, appending
from penstock.observe.events import AppendFailed, tell
from penstock.settings import KafkaSettings
from penstock.values import Duration

Acks = Literal["all", "1", "0"]

log = logging.getLogger("penstock.kafka")

_LISTEN_S = 0.2
_ROOM_S = 0.002
_PURGE_S = 2.0


class Unwritten(NamedTuple):
    """Why a record was given up, and whether it may be in the log all the same."""

    reason: PenstockError
    in_doubt: bool


class Lost(NamedTuple):
    """One of many records that was given up. Records of a batch that are alike in all this are interchangeable."""

    number: int | None
    """The one that it was sent under, if any."""
    partition: int
    key: bytes | None
    value: bytes | None
    why: Unwritten


OnReport = Callable[[int | None, Unwritten | None], None]
"""Called once with the offset (None where the broker tells none), or with why there is none."""


class ReportingWriter:
    """Appends records and reports on every one, from its own thread. Any number of threads may send.

    With acks "all" each record is appended once (idempotent); with "1" and "0" a repeated request may double one, and
    with "0" nobody hears of a record that the broker refused.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        acks: Acks = "all",
        timeout: Duration,
        record_max_bytes: int = 1_000_000,
        linger_ms: float = 0,
    ) -> None:
        self._timeout_s = timeout.seconds
        self._watch = ConnectionWatch(settings.bootstrap_servers)
        self._is_broken = False
        self._stopping = threading.Event()
        is_idempotent = acks == "all"
        config = properties(
            settings,
            preferred={
                "linger.ms": linger_ms,
                # Small: what waits here grows older, and is given up when it is older than the time-out.
                "queue.buffering.max.messages": 100_000,
                "queue.buffering.max.kbytes": 65_536,
                "message.timeout.ms": int(timeout),
                "message.max.bytes": record_max_bytes,
                # A misspelt topic is an error, not a new topic.
                "allow.auto.create.topics": False,
                # An answer that is lost is asked for again while there is time; where that could double a record,
                # later.
                **({"socket.timeout.ms": max(500, int(timeout) // 3)} if is_idempotent else {}),
            },
            fixed={"enable.idempotence": is_idempotent, "acks": acks},
        )
        self._client: Any = connect(confluent_kafka.Producer, config, self._watch)
        self._listener = threading.Thread(target=self._listen, name="penstock-reports", daemon=True)
        self._listener.start()

    @property
    def is_broken(self) -> bool:
        """Whether the client gave up for good, so that only a new one helps."""
        return self._is_broken

    def forbid_waiting_for_itself(self) -> None:
        """Raises UsageError on the thread that calls back: a report that is waited for there never comes."""
        if threading.current_thread() is self._listener:
            raise UsageError(
                "a callback of a send waits for another send, which would never be reported",
                next_step="use send_soon there, or hand the work to a thread of your own",
            )

    def partitions(self, topic: str, *, timeout_s: float) -> int:
        """How many the topic has now. Raises NotFound, BrokerUnavailable."""
        doing = f"asking for the partitions of {topic}"
        try:
            answer = self._open_client().list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException as failure:
            raise self._translated(failure, doing) from failure
        if answer.error is not None:
            raise self._translated(answer.error, doing)
        if not answer.partitions:
            raise NotFound(f"topic {topic} has no partitions yet", next_step="try again in a moment")
        return len(answer.partitions)

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers | None,
        on_report: OnReport,
    ) -> None:
        """Queue a record. When the queue is full this waits for room.

        Raises UsageError for one that is too large, TransientError when the queue stays full; no report follows then.
        """
        self._enqueue(topic, partition, value, key, headers, partial(self._reported, on_report))

    def send_counted(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers | None,
        number: int,
        tally: Tally,
    ) -> None:
        """The same for one of many."""
        try:
            self._enqueue(topic, partition, value, key, headers, partial(tally.reported, number))
        except PenstockError as refused:
            tally.refused(number, partition, key, value, refused)
        else:
            tally.expect(1)

    def send_batch(self, topic: str, partition: int, records: list[dict[str, Any]], tally: Tally) -> None:
        """The same for many without headers, each a dict with `value` and perhaps `key`: far cheaper in one call."""
        deadline = time.monotonic() + self._timeout_s
        while records:
            try:
                queued = self._open_client().produce_batch(topic, records, partition, tally.reported_unnumbered)
            except KafkaException as failure:
                refusal = self._refusal(failure, topic, partition, records[0].get("value"))
                tally.refused_all(partition, records, refusal)
                return
            except UsageError as closed:
                tally.refused_all(partition, records, closed)
                return
            tally.expect(queued)
            records = self._unqueued(topic, partition, records, tally) if queued < len(records) else []
            if records and not self._waited_for_room(deadline):
                full = self._full(topic, partition, records[0].get("value"))
                tally.refused_all(partition, records, full)
                return

    def tally(self, topic: str) -> Tally:
        """For one call that sends many."""
        return Tally(partial(self._unwritten, topic))

    def wait(self, tally: Tally) -> tuple[Lost, ...]:
        """Return when each of the many is acknowledged or given up, with the latter."""
        tally.close()
        while not tally.is_complete.wait(1.0):
            if not self._listener.is_alive():
                raise UsageError("this writer was closed with records under way", next_step="close it after its users")
        return tuple(tally.lost)

    def close(self, timeout_ms: int = 5_000) -> int:
        """Wait for what is under way, then end; returns how many were given up (and reported so). Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return 0
        is_called_back = threading.current_thread() is self._listener
        if not is_called_back:
            self._drain(client, timeout_ms / 1_000)
        left = len(client)
        if left:
            client.purge()
        if is_called_back:
            # By a report: those that are left come after it.
            self._stopping.set()
            return left
        self._drain(client, _PURGE_S)
        self._stopping.set()
        self._listener.join(10)
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        on_delivery: Callable[[KafkaError | None, Any], None],
    ) -> None:
        produce = self._open_client().produce
        options = {"on_delivery": on_delivery} if headers is None else {"on_delivery": on_delivery, "headers": headers}
        deadline: float | None = None
        while True:
            try:
                produce(topic, value, key, partition, **options)
                return
            except BufferError:
                deadline = deadline or time.monotonic() + self._timeout_s
                if not self._waited_for_room(deadline):
                    raise self._full(topic, partition, value) from None
            except KafkaException as failure:
                raise self._refusal(failure, topic, partition, value) from failure

    def _unqueued(
        self, topic: str, partition: int, records: Sequence[dict[str, Any]], tally: Tally
    ) -> list[dict[str, Any]]:
        """What found no room; the client refuses all that comes behind the first, so that the order is kept."""
        again = []
        for record in records:
            error = record.pop("_error", None)
            if error is None:
                continue
            if error.code() == KafkaError._QUEUE_FULL:
                again.append(record)
            else:
                tally.refused_all(partition, [record], self._refusal(error, topic, partition, record.get("value")))
        return again

    def _waited_for_room(self, deadline: float) -> bool:
        if time.monotonic() > deadline:
            return False
        time.sleep(_ROOM_S)
        return True

    def _full(self, topic: str, partition: int, value: bytes | None) -> TransientError:
        return TransientError(
            f"{appending(topic, partition, value)} found the send queue full for {self._timeout_s:g} s",
            next_step="send slower, check the broker, or raise queue.buffering.max.messages and .kbytes",
        )

    def _reported(self, on_report: OnReport, error: KafkaError | None, record: Any) -> None:
        if error is None:
            offset = record.offset()
            on_report(offset if offset is not None and offset >= 0 else None, None)
        else:
            on_report(None, self._unwritten(record.topic(), error, record.partition(), record.value()))

    def _unwritten(self, topic: str, error: KafkaError, partition: int, value: bytes | None) -> Unwritten:
        reason = self._refusal(error, topic, partition, value)
        tell(AppendFailed(topic=topic, partition=partition, reason=str(reason)))
        return Unwritten(reason, may_have_happened(error))

    def _refusal(
        self, failure: KafkaException | KafkaError, topic: str, partition: int, value: bytes | None
    ) -> PenstockError:
        error = error_of(failure)
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
        return self._translated(error, appending(topic, partition, value))

    def _translated(self, failure: KafkaException | KafkaError, doing: str) -> PenstockError:
        return translated(failure, doing, watch=self._watch)

    def _listen(self) -> None:
        client = self._client
        while not self._stopping.is_set():
            self._serve(client)
        # Who closes in a callback cannot wait for the reports that come after it.
        deadline = time.monotonic() + _PURGE_S
        while len(client) and time.monotonic() < deadline:
            self._serve(client)

    def _serve(self, client: Any) -> None:
        try:
            served(lambda: client.poll(_LISTEN_S))
        except KafkaException:
            # Fatal. What was under way is reported by and by.
            self._is_broken = True
            time.sleep(_ROOM_S)
        except Exception:
            # Of one record; all others wait to be reported here, too.
            log.exception("a report on a record failed")
            time.sleep(_ROOM_S)

    def _drain(self, client: Any, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while len(client) and time.monotonic() < deadline:
            time.sleep(_ROOM_S)

    def _open_client(self) -> Any:
        if self._client is None:
            self._closed()
        return self._client

    def _closed(self) -> NoReturn:
        raise UsageError("this writer is closed", next_step="make a new one")


class Tally:
    """Counts the reports on many records. The sending thread expects, the listening one reports: no lock is needed."""

    def __init__(self, unwritten: Callable[[KafkaError, int, bytes | None], Unwritten]) -> None:
        self.lost: list[Lost] = []
        self.is_complete = threading.Event()
        self._unwritten = unwritten
        self._expected = 0
        self._heard = 0
        self._goal: int | None = None

    def expect(self, count: int) -> None:
        self._expected += count

    def close(self) -> None:
        """No more will be sent."""
        self._goal = self._expected
        if self._heard == self._goal:
            self.is_complete.set()

    def reported_unnumbered(self, error: KafkaError | None, record: Any) -> None:
        # This is what an acknowledgement costs.
        if error is not None:
            self._lose(None, error, record)
        self._heard += 1
        if self._heard == self._goal:
            self.is_complete.set()

    def reported(self, number: int, error: KafkaError | None, record: Any) -> None:
        if error is not None:
            self._lose(number, error, record)
        self.reported_unnumbered(None, record)

    def refused(
        self, number: int | None, partition: int, key: bytes | None, value: bytes | None, reason: PenstockError
    ) -> None:
        """It was never sent."""
        self.lost.append(Lost(number, partition, key, value, Unwritten(reason, in_doubt=False)))

    def refused_all(self, partition: int, records: Sequence[dict[str, Any]], reason: PenstockError) -> None:
        for record in records:
            self.refused(None, partition, record.get("key"), record.get("value"), reason)

    def _lose(self, number: int | None, error: KafkaError, record: Any) -> None:
        partition, value = record.partition(), record.value()
        self.lost.append(Lost(number, partition, record.key(), value, self._unwritten(error, partition, value)))
