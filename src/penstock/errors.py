"""Every exception of Penstock, as one tree. A caller asks: whose fault is it, and may I try again?

PenstockError
├── UsageError              you asked for something wrong; fix the call
│   └── ConfigError         ... or the configuration
├── NotFound                the queue, group, table or file that you named does not exist
├── TransientError          the world misbehaved; the same call may work later (retriable = True)
│   └── BrokerUnavailable   no broker answered
├── Refused                 going on could lose or double something; an operator has to decide
│   ├── NotAcquired         a lock or claim that belongs to somebody else was not to be had in time
│   ├── Halted              a ledger partition is at a record that this version must not pass
│   ├── GenesisMismatch     a ledger was founded for other values than ours
│   ├── BrokerRunning       an embedded broker already runs on this data
│   ├── WrongChecksum       a downloaded or given file is not the one that was listed
│   ├── Gap                 landing what comes next would leave a hole in a table
│   └── Restored            a table was set back to an older version while its offsets were not
├── OffsetGone              the log no longer has (or does not yet have) the offset that was to be read
├── AccessDenied            the broker does not let this client in, or not do this; no retry helps
├── CheckFailed             a check that was asked for is not met
├── Fenced                  a newer owner took over; stop, do not retry
├── TransactionAborted      the transaction is rolled back; the same work may be done again
├── NotAllSent              some of many messages were refused, or nobody can tell; `failures` says which and why
├── Undecodable             a payload is not what its reader's type says; reading it again does not help
├── OutcomeUnknown          nobody can tell yet whether it happened; settle, read again, then go on
├── TransactionBroken       the producer is beyond repair; settle its id and go on under a fresh one
├── StreamFailed            Spark ended a stream; the message says with what
├── BrokerFailed            the embedded broker did not come up, or went away; the message ends with its log
├── Unavailable             this machine lacks something (Java, jars, an extra); the message says what to install
└── InvariantBroken         a bug in Penstock; please report it
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar


class PenstockError(Exception):
    """Says what happened and, in `next_step`, what to do about it."""

    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, next_step: str = "") -> None:
        self.what = what
        self.next_step = next_step
        super().__init__(f"{what}; {next_step}" if next_step else what)


class UsageError(PenstockError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class NotFound(PenstockError):
    exit_code = 3


class TransientError(PenstockError):
    retriable = True


class BrokerUnavailable(TransientError):
    exit_code = 4


class Refused(PenstockError):
    exit_code = 6


class NotAcquired(Refused):
    """Somebody else holds it; waiting longer may help."""


class Halted(Refused):
    """The fold of one ledger partition ended; nothing is handed out or renewed there."""

    def __init__(self, *, ledger: str, partition: int, offset: int, reason: str, next_step: str) -> None:
        self.ledger, self.partition, self.offset, self.reason = ledger, partition, offset, reason
        super().__init__(
            f"ledger {ledger} partition {partition} stands at offset {offset}: {reason}", next_step=next_step
        )


class GenesisMismatch(Refused):
    """The first record of a ledger fixed other values than this process was started with."""


class OffsetGone(PenstockError):
    """A reader's position is outside the log: cut away below it, or beyond its end."""

    def __init__(self, *, topic: str, partition: int, offset: int) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        super().__init__(
            f"{topic}/{partition} has no offset {offset}", next_step="ask for the log's bounds and assign again"
        )


class AccessDenied(PenstockError):
    """Authentication, encryption or authorization failed."""


class BrokerRunning(Refused):
    """Two brokers on one data folder would destroy it."""

    def __init__(self, *, data: str, pid: int | None) -> None:
        self.data, self.pid = data, pid
        who = f"a broker with pid {pid}" if pid else "a broker that is just starting or stopping"
        super().__init__(
            f"{who} already runs on {data}",
            next_step=f"stop it with `penstock broker stop --data {shlex.quote(data)}`, or choose another folder",
        )


class WrongChecksum(Refused):
    """The bytes are not those that were listed; they are not used."""

    def __init__(self, *, path: str, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path} has SHA-256 {found}, not {expected}",
            next_step="delete it and try again; if it stays wrong, distrust the place that it comes from",
        )


class Gap(Refused):
    """Messages that the table lacks were not to be had; nothing is landed behind them."""

    def __init__(self, *, topic: str, partition: int, first: int, last: int, next_step: str = "") -> None:
        self.topic, self.partition, self.first, self.last = topic, partition, first, last
        super().__init__(
            f"offsets {first} to {last} of {topic}/{partition} are neither in the table nor in what comes next",
            next_step=next_step
            or f"`penstock lake rewind` to {first} if Kafka still has them, or to {last + 1} to go on without them",
        )


class Restored(Refused):
    """RESTORE takes rows back, but not the offsets that stand beside them."""

    def __init__(self, *, table: str, version: int) -> None:
        self.table, self.version = table, version
        super().__init__(
            f"{table} was restored to an older state in its version {version}: rows are gone whose offsets are stored",
            next_step="`penstock lake rewind --to-version N` sets the offsets back to those of version N",
        )


class CheckFailed(PenstockError):
    exit_code = 5


class Fenced(PenstockError):
    pass


class TransactionAborted(PenstockError):
    retriable = True


@dataclass(frozen=True, slots=True)
class NotSent:
    """One of many messages, and why it may not be in the log."""

    index: int
    """Its place in what was given."""
    id: str | None
    """The id that it was given, if any."""
    reason: PenstockError
    """OutcomeUnknown, or a definite refusal."""


class NotAllSent(PenstockError):
    """All but the named ones are acknowledged."""

    def __init__(self, what: str, *, failures: tuple[NotSent, ...], next_step: str = "") -> None:
        self.failures = failures
        super().__init__(what, next_step=next_step)


class Undecodable(PenstockError):
    pass


class OutcomeUnknown(PenstockError):
    """`id` names the message in question, where there is one."""

    def __init__(self, what: str, *, next_step: str = "", id: str | None = None) -> None:
        self.id = id
        super().__init__(what, next_step=next_step)


class TransactionBroken(PenstockError):
    pass


class StreamFailed(PenstockError):
    """`details` is Java's whole chain of causes."""

    def __init__(self, what: str, *, details: str = "", next_step: str = "") -> None:
        self.details = details
        super().__init__(what, next_step=next_step)


class BrokerFailed(PenstockError):
    """The embedded broker did not come up, or went away."""

    def __init__(self, why: str, *, log_tail: str = "", next_step: str = "") -> None:
        self.why, self.log_tail = why, log_tail
        super().__init__(f"{why}\n{log_tail}" if log_tail else why, next_step=next_step)


class Unavailable(PenstockError):
    pass


class InvariantBroken(PenstockError):
    pass
