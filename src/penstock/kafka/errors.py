"""Errors of the client, translated once into the tree of `penstock.errors`; each says what to do next."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import (
    AccessDenied,
    BrokerUnavailable,
    Fenced,
    InvariantBroken,
    NotFound,
    PenstockError,
    Refused,
    TransactionBroken,
    TransientError,
    UsageError,
)

ClientFailure: TypeAlias = "KafkaException | KafkaError"

Answer = TypeVar("Answer")

_Make: TypeAlias = Callable[..., PenstockError]


class ConnectionWatch:
    """Keeps what a client last said about its connections, for a call that then merely times out."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._lock = threading.Lock()
        self._trouble: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """The client's `error_cb`. A refusal of our credentials says more than the closed connection behind it."""
        with self._lock:
            if self._trouble is None or _code(self._trouble) not in _DENIED:
                self._trouble = error

    def trouble(self) -> KafkaError | None:
        with self._lock:
            return self._trouble

    def forget(self) -> None:
        """A call went well, so what was heard before is over."""
        with self._lock:
            self._trouble = None


def error_of(failure: ClientFailure) -> KafkaError:
    """The client's own error inside whatever it raised."""
    if isinstance(failure, KafkaError):
        return failure
    inner = failure.args[0] if failure.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(failure))


def served(call: Callable[[], Answer]) -> Answer:
    """Make a call that serves the client's callbacks; a fatal error of the client always comes as a KafkaException.

    The client may raise a fatal error as a bare KafkaError, which is no exception (not even `except BaseException`
    meets it, and it must not become the context of another one: hence the raise outside the handler), or, when it has
    further callbacks to make, as a SystemError that does not say why.
    """
    try:
        return call()
    except SystemError as garbled:
        raise KafkaException(KafkaError(KafkaError._FATAL, "the client gave up", True)) from garbled
    except:  # noqa: E722
        fatal: Any = sys.exc_info()[1]
        if not isinstance(fatal, KafkaError):
            raise
    raise KafkaException(fatal)


def translated(failure: ClientFailure, doing: str, *, watch: ConnectionWatch | None = None) -> PenstockError:
    """The Penstock error for a failure while `doing` something; to be raised `from` the failure.

    With a watch, a time-out is told as the connection trouble that caused it.
    """
    error = error_of(failure)
    trouble = watch.trouble() if watch is not None else None
    if error.code() in _SILENT and trouble is not None and trouble.code() in _TELLING:
        error = trouble
    if watch is not None and error.code() in _TELLING:
        doing = f"{doing} at {watch.where}"
    code = _code(error)
    for codes, make, next_step in _TABLE:
        if code in codes:
            return make(_sentence(doing, error), next_step=next_step)
    if error.fatal() or code == KafkaError._FATAL:
        return TransactionBroken(_sentence(doing, error), next_step="close this client and open a new one")
    if error.retriable():
        return TransientError(_sentence(doing, error), next_step="try again")
    return PenstockError(_sentence(doing, error), next_step="see the broker's log for what it objected to")


def may_have_happened(failure: ClientFailure) -> bool:
    """Whether a record that failed so can be in the log all the same: all but refusals that come before the append."""
    return error_of(failure).code() not in _BEFORE_THE_APPEND


def _code(error: KafkaError) -> int:
    """Its code; but a handshake that is cut short comes as a mere transport failure, which no retry will mend."""
    is_handshake = "SSL_HANDSHAKE" in error.str() or "SSL handshake" in error.str()
    return KafkaError._SSL if is_handshake else int(error.code())


def _sentence(doing: str, error: KafkaError) -> str:
    return f"{doing} failed: {error.str()} ({error.name()})"


_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)

_DENIED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SECURITY_DISABLED,
    }
)

_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

# Codes that only say that nothing came back; what the connections said is then the better reason.
_SILENT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
    }
)
_TELLING = _UNREACHABLE | _DENIED

_ABSENT = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError._UNKNOWN_GROUP,
        KafkaError._NOENT,
    }
)

_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)

_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})

_WRONG = frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_ALREADY_EXISTS,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)

_BUSY_GROUP = frozenset(
    {KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.GROUP_SUBSCRIBED_TO_TOPIC}
)

_TOO_OLD = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE, KafkaError._NOT_IMPLEMENTED})

_LATER = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._QUEUE_FULL,
        KafkaError._WAIT_COORD,
        KafkaError._ISR_INSUFF,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)

# A broker that has just started, or a coordinator or leader that has just moved, answers so for a moment.
NOT_READY = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._WAIT_COORD,
    }
)

_BEFORE_THE_APPEND = (
    _ABSENT
    | _FORBIDDEN
    | _TOO_LARGE
    | _TOO_OLD
    | _WRONG
    | {
        KafkaError._PURGE_QUEUE,
        KafkaError._QUEUE_FULL,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)

_TABLE: tuple[tuple[frozenset[int], _Make, str], ...] = (
    (
        _UNREACHABLE,
        BrokerUnavailable,
        "check that the broker runs and that bootstrap_servers is its address (`penstock doctor` tells more)",
    ),
    (
        _DENIED,
        AccessDenied,
        "check security.protocol, the certificates and the sasl.* properties in [kafka.client], or given with -X",
    ),
    (_FORBIDDEN, AccessDenied, "ask for the missing right (`penstock doctor --acls` lists what is needed)"),
    (_ABSENT, NotFound, "check the name, or make what is missing with `penstock topics apply`"),
    (
        _FENCED,
        Fenced,
        "a newer producer took this transactional id over, or its transaction timed out; stop using it",
    ),
    (
        _TOO_LARGE,
        UsageError,
        "send less in one record, or raise the topic's max.message.bytes and the client's message.max.bytes",
    ),
    (_BUSY_GROUP, Refused, "stop the group's members first; offsets of a group with members are theirs to set"),
    (_TOO_OLD, Refused, "use a newer broker: Penstock needs Apache Kafka 3.6 or later"),
    (_WRONG, UsageError, "correct the value that is named"),
    (_LATER, TransientError, "try again; if it stays, look at the broker's log"),
    (
        frozenset({KafkaError._STATE, KafkaError._CONFLICT, KafkaError._PREV_IN_PROGRESS}),
        InvariantBroken,
        "please report it",
    ),
)
