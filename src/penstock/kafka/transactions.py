"""Transactions, under one rule: a transactional id serves one producer object, and none after a doubt.

The client does not speak the repaired transaction protocol: a commit or abort that is late can land on a *later*
transaction of the same producer. And fencing is symmetric: who initialises its own id again is un-fenced. So after a
fence, or after any call whose outcome is not known, the old id is initialised once more only to settle what it left,
and work goes on under a fresh id that is initialised first, then announced, and only then used.

    NEW -- open --> READY -- begin --> OPEN -- commit, abort --> READY
                                         \\-- Fenced, OutcomeUnknown, TransactionBroken --> SPENT
    SPENT -- settle_and_renew --> READY
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.crash import crash_point
from penstock.errors import (
    Fenced,
    OutcomeUnknown,
    PenstockError,
    TransactionAborted,
    TransactionBroken,
    TransientError,
    UsageError,
)
from penstock.kafka.errors import ConnectionWatch, error_of, served, translated
from penstock.kafka.properties import connect, properties
from penstock.kafka.writer import Headers, appending, enqueue
from penstock.observe.events import ProducerFenced, TransactionalIdChanged, TransactionUnsettled, tell
from penstock.settings import KafkaSettings
from penstock.values import Duration, TopicPartition, checked_name, duration

_RETRY_BACKOFF = "retry.backoff.ms"
_RETRY_BACKOFF_MAX = "retry.backoff.max.ms"
# The client waits at least this share of its retry back-off before it repeats a request.
_EARLIEST_RETRY = 0.8
# The coordinator writes the markers of a commit after it has answered; until then it turns offsets away, and the
# client tries again only after its whole back-off.
_MARKERS_S = 0.03

# Acknowledgements wake nobody, since only failures are reported; so the wait for them looks often.
_POLL_S = 0.0005

# What befalls the other records when one has failed.
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

_SPENT_STEP = "call settle_and_renew, read positions again, and go on under the fresh id"


class _State(Enum):
    NEW = "not open yet"
    READY = "ready to begin"
    OPEN = "in a transaction"
    SPENT = "spent: its outcome has to be settled"
    CLOSED = "closed"


class Transactions:
    """One producer at a time, each under an id of its own. One thread uses it.

    `announce` gets a fresh id after it was initialised, and returns when everyone who may have to fence it knows it
    (it was read back in the claim or lease).
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        group: str,
        instance: str,
        announce: Callable[[str], None],
        timeout: Duration = duration("10s"),
        call_timeout: Duration | None = None,
        linger_ms: float = 0.5,
    ) -> None:
        """`instance` is new at every process start; `timeout` is when the coordinator aborts what is left open."""
        self._settings = settings
        self._group = checked_name("group", group)
        self._instance = checked_name("instance", instance)
        self._announce = announce
        self._timeout = timeout
        self._call_s = (call_timeout or timeout).seconds
        self._linger_ms = linger_ms
        self._number = 0
        self._state = _State.NEW
        self._producer: Any = None
        self._watch = ConnectionWatch(settings.bootstrap_servers)
        self._failed: PenstockError | None = None
        self._doubt: str | None = None
        self._has_sent = False
        self._ended_at = 0.0
        self._quickest_retry_s = 0.0

    @property
    def id(self) -> str:
        """The present transactional id, `<group>-<instance>-<n>`; n is 0 before `open`."""
        return f"{self._group}-{self._instance}-{self._number}"

    @property
    def is_spent(self) -> bool:
        """Whether only `settle_and_renew` helps on."""
        return self._state is _State.SPENT

    def open(self) -> str:
        """Initialise the first id, announce it, and return it."""
        self._require(_State.NEW, "open")
        return self._fresh()

    def begin(self) -> None:
        self._require(_State.READY, "begin")
        self._failed, self._has_sent, self._doubt = None, False, None
        self._call("begin", lambda: self._producer.begin_transaction(), sent=False)
        self._state = _State.OPEN
        crash_point("transactions.begun")

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Queue a record of this transaction; if it cannot be appended, `commit` says so.

        Raises UsageError for one that is too large (the transaction goes on without it), TransactionAborted,
        TransactionBroken, Fenced.
        """
        self._require(_State.OPEN, "send")
        self._has_sent = True
        try:
            enqueue(self._producer, topic, partition, value, key, headers, timeout_s=self._call_s)
        except KafkaException as failure:
            if error_of(failure).code() == KafkaError._FATAL:
                self._judge("send", failure)
            if error_of(failure).code() == KafkaError._STATE:
                # An earlier record failed; flushing brings the reason.
                self._flush("send")
                self._roll_back("send", failure)
            raise translated(failure, appending(topic, partition, value), watch=self._watch) from failure
        crash_point("transactions.sent")

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Commit these offsets for a group with the transaction, without being a member of it."""
        self._require(_State.OPEN, "send_offsets")
        if self._doubt is not None:
            # Older offsets that come late would replace these.
            self._roll_back("send_offsets", TransientError(self._doubt))
        wanted = [confluent_kafka.TopicPartition(*each, offset) for each, offset in offsets.items()]
        if self._has_sent:
            self._flush("send_offsets")
        else:
            time.sleep(max(0.0, self._ended_at + _MARKERS_S - time.monotonic()))
        metadata = _group_metadata(group)
        self._call("send_offsets", lambda: self._producer.send_offsets_to_transaction(wanted, metadata, self._call_s))
        self._has_sent = True
        crash_point("transactions.offsets_sent")

    def commit(self) -> None:
        """Make all that was sent visible at once.

        Raises TransactionAborted (rolled back; the same work may be done again, here), OutcomeUnknown,
        TransactionBroken, Fenced (after these three, `settle_and_renew`).
        """
        self._require(_State.OPEN, "commit")
        self._flush("commit")
        crash_point("transactions.flushed")
        self._call("commit", lambda: self._producer.commit_transaction(self._call_s))
        self._ended("commit")
        crash_point("transactions.committed")

    def abort(self) -> None:
        """Roll back all that was sent. Raises TransactionBroken, Fenced; then too, nothing of it is ever visible."""
        self._require(_State.OPEN, "abort")
        self._call("abort", lambda: self._producer.abort_transaction(self._call_s))
        self._ended("abort")
        crash_point("transactions.aborted")

    def settle_and_renew(self) -> str:
        """Settle what the old id left (whole or not at all), then go on under a fresh one, which is returned.

        Allowed at any time but inside a transaction; may be called again when it fails. Positions must be read again
        afterwards: only they tell what was committed.
        """
        if self._state not in (_State.READY, _State.SPENT):
            self._require(_State.SPENT, "settle_and_renew")
        old = self.id
        self._state = _State.SPENT
        # First the producer, then the id: what the old object might still send would come too late to be settled.
        self._discard()
        fence(self._settings, old, timeout=self._timeout)
        crash_point("transactions.settled")
        new = self._fresh()
        tell(TransactionalIdChanged(old=old, new=new))
        return new

    def close(self) -> None:
        """Roll an open transaction back, as far as that is possible in time, and end. Idempotent."""
        try:
            if self._state is _State.OPEN:
                self.abort()
        except (Fenced, TransactionBroken):
            pass  # The coordinator aborts it after its time-out.
        finally:
            self._state = _State.CLOSED
            self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fresh(self) -> str:
        self._number += 1
        self._state = _State.SPENT
        config = _properties(self._settings, self.id, timeout=self._timeout, linger_ms=self._linger_ms)
        self._quickest_retry_s = _EARLIEST_RETRY * _retry_backoff_s(config)
        config["on_delivery"] = self._delivered
        self._producer = connect(confluent_kafka.Producer, config, self._watch)
        _initialise(self._producer, self.id, self._watch, within_s=self._settings.request_timeout.seconds)
        crash_point("transactions.initialised")
        self._announce(self.id)
        crash_point("transactions.announced")
        self._state = _State.READY
        return self.id

    def _discard(self) -> None:
        """Let the producer go. Its own `close` would send an abort, for which it may be too late, and wait for it."""
        if self._producer is not None:
            self._producer.purge(blocking=False)
            self._producer = None

    def _ended(self, call: str) -> None:
        """The outcome is known. After a doubt it was the last one of this producer."""
        self._ended_at = time.monotonic()
        self._state = _State.READY
        if self._doubt is not None:
            self._spend(call, self._doubt)

    def _delivered(self, error: KafkaError | None, record: Any) -> None:
        if error is None or (error.code() in _PURGED and self._failed is not None):
            return
        doing = appending(record.topic(), record.partition(), record.value())
        self._failed = translated(error, doing, watch=self._watch)

    def _flush(self, call: str) -> None:
        """Wait until all records are in the log; what is not, rolls the transaction back."""
        left = self._call(call, self._drained, sent=False)
        if left:
            self._roll_back(call, TransientError(f"{left} records were not acknowledged in {self._call_s:g} s"))
        if self._failed is not None:
            self._roll_back(call, self._failed)

    def _drained(self) -> int:
        """Wait as the client's own flush does, which however makes callbacks on top of a fatal error."""
        deadline = time.monotonic() + self._call_s
        while (left := len(self._producer)) and time.monotonic() < deadline:
            self._producer.poll(_POLL_S)
        self._producer.poll(0)
        return left

    def _call(self, call: str, run: Callable[[], Any], *, sent: bool = True) -> Any:
        """Run one call of the client and judge its failure; `sent` calls end up in a request to a coordinator."""
        began = time.monotonic()
        try:
            answer = served(run)
        except KafkaException as failure:
            self._judge(call, failure)
        if sent and time.monotonic() - began >= self._quickest_retry_s:
            # The client may have repeated it. The answer is good, but the first request may still be under way, and
            # would hit the next transaction of this producer.
            self._doubt = f"{call} took longer than {self._quickest_retry_s:g} s and may have been repeated"
        return answer

    def _judge(self, call: str, failure: KafkaException) -> NoReturn:
        failure = self._real(failure)
        error = error_of(failure)
        meaning = translated(failure, f"{call} of a transaction of {self.id}", watch=self._watch)
        if isinstance(meaning, Fenced):
            self._state = _State.SPENT
            tell(ProducerFenced(transactional_id=self.id, call=call))
            raise Fenced(
                f"{self.id} was fenced at {call}: a newer owner initialised it, or its transaction was open for more"
                f" than {self._timeout}",
                next_step="stop this work, or " + _SPENT_STEP,
            ) from failure
        if error.txn_requires_abort() and not error.fatal() and call != "abort":
            if call == "commit":
                self._doubt = error.str()
            self._roll_back(call, failure)
        self._spend(call, error.str())
        if call == "commit" and not error.fatal():
            raise OutcomeUnknown(
                f"whether {self.id} committed is not known: {error.str()} ({error.name()})", next_step=_SPENT_STEP
            ) from failure
        raise TransactionBroken(meaning.what, next_step=_SPENT_STEP) from failure

    def _real(self, failure: KafkaException) -> KafkaException:
        """Why the client gave up, where it said only that it did: any further call is answered with the reason."""
        if error_of(failure).code() != KafkaError._FATAL:
            return failure
        try:
            self._producer.begin_transaction()
        except KafkaException as reason:
            return reason
        return failure

    def _roll_back(self, call: str, cause: PenstockError | KafkaException) -> NoReturn:
        """Abort, and say so. A successful abort proves that nothing was committed."""
        what = cause.what if isinstance(cause, PenstockError) else error_of(cause).str()
        self.abort()
        raise TransactionAborted(
            f"a transaction of {self.id} was rolled back at {call}: {what}",
            next_step="mend the cause, then do the same work again",
        ) from cause

    def _spend(self, call: str, reason: str) -> None:
        self._state = _State.SPENT
        tell(TransactionUnsettled(transactional_id=self.id, call=call, reason=reason))

    def _require(self, state: _State, call: str) -> None:
        if self._state is state:
            return
        if self._state is _State.SPENT:
            raise TransactionBroken(f"{call}: {self.id} is {self._state.value}", next_step=_SPENT_STEP)
        raise UsageError(
            f"{call} of transactions of {self.id}, which is {self._state.value}",
            next_step="the order is open, begin, send and send_offsets, then commit or abort, then begin again",
        )


def fence(settings: KafkaSettings, transactional_id: str, *, timeout: Duration = duration("10s")) -> None:
    """Initialise somebody's id: what it had open is aborted (or, if its commit was under way, committed), and whoever
    used it is fenced. Returns when that is settled.
    """
    watch = ConnectionWatch(settings.bootstrap_servers)
    config = _properties(settings, transactional_id, timeout=timeout, linger_ms=0)
    producer = connect(confluent_kafka.Producer, config, watch)
    _initialise(producer, transactional_id, watch, within_s=settings.request_timeout.seconds)
    crash_point("transactions.fenced")


def _initialise(producer: Any, transactional_id: str, watch: ConnectionWatch, *, within_s: float) -> None:
    """Raises BrokerUnavailable or another translated error when it does not succeed in time."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            served(lambda: producer.init_transactions(max(0.1, deadline - time.monotonic())))
        except KafkaException as failure:
            served(lambda: producer.poll(0))
            if error_of(failure).retriable() and time.monotonic() < deadline:
                continue
            raise translated(failure, f"initialising {transactional_id}", watch=watch) from failure
        return


def _properties(
    settings: KafkaSettings, transactional_id: str, *, timeout: Duration, linger_ms: float
) -> dict[str, object]:
    return properties(
        settings,
        preferred={
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 262_144,
            # Long, so that a call that was quick cannot have been repeated inside the client.
            _RETRY_BACKOFF: 500,
            _RETRY_BACKOFF_MAX: 1_000,
        },
        fixed={
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(timeout),
            "enable.idempotence": True,
            "acks": "all",
            "delivery.report.only.error": True,
        },
    )


def _retry_backoff_s(config: Mapping[str, object]) -> float:
    return min(float(str(config[name])) for name in (_RETRY_BACKOFF, _RETRY_BACKOFF_MAX)) / 1_000


def _group_metadata(group: str) -> Any:
    """What names a group in a transaction, for somebody who is no member; made without a connection."""
    consumer = confluent_kafka.Consumer({"group.id": group})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
