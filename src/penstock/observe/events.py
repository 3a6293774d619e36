"""Everything that can happen, as frozen dataclasses, and the one place where they are told.

Whoever wants to know subscribes; `logs.py` and `metrics.py` are the two listeners that ship with Penstock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `level` is its weight in a log: debug, info, warning or error."""

    level: ClassVar[str] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStarted(Event):
    node: int
    bootstrap: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStopped(Event):
    node: int
    pid: int
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JarsFetched(Event):
    count: int
    megabytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIgnored(Event):
    """A ledger record that is no fact: junk, or from before the genesis."""

    level: ClassVar[str] = "debug"
    ledger: str
    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHalted(Event):
    level: ClassVar[str] = "error"
    ledger: str
    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogClockJumped(Event):
    """The log clock ran ahead of our own elapsed time: what looks expired may not be."""

    level: ClassVar[str] = "warning"
    ledger: str
    partition: int
    ahead_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRebuilt(Event):
    ledger: str
    partition: int
    snapshot_offset: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten(Event):
    ledger: str
    partition: int
    offset: int
    parts: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCut(Event):
    ledger: str
    partition: int
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed(Event):
    """The client gave a record up; whether it is in the log only reading back can tell."""

    level: ClassVar[str] = "warning"
    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionUnsettled(Event):
    """A transactional call had no known outcome; the id is settled and given up."""

    level: ClassVar[str] = "warning"
    transactional_id: str
    call: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced(Event):
    level: ClassVar[str] = "warning"
    transactional_id: str
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdChanged(Event):
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(Event):
    """A slot passed on to somebody else while we held it."""

    level: ClassVar[str] = "warning"
    slot: str
    token: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGained(Event):
    slot: str
    token: int
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGivenBack(Event):
    slot: str
    token: int
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsCounted(Event):
    """How many slots of a group are in a state, as one member sees them; told when it changes."""

    level: ClassVar[str] = "debug"
    group: str
    state: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOverdue(Event):
    """A message was not acked in time, and leaves on the way that `on_overdue` said."""

    level: ClassVar[str] = "warning"
    group: str
    topic: str
    partition: int
    offset: int
    waited_ms: int
    way: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BurialFailed(Event):
    """Dead letters could not be written; it is tried again, and the position stays until then."""

    level: ClassVar[str] = "error"
    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStalled(Event):
    """Nobody came back for more while a message is overdue: all partitions are given back until somebody does."""

    level: ClassVar[str] = "error"
    group: str
    client: str
    away_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackFailed(Event):
    """A function of the user's raised, or answered what it may not."""

    level: ClassVar[str] = "error"
    callback: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMissing(Event):
    """A topic that is to be consumed does not exist, or not any more; the group goes on as soon as it does."""

    level: ClassVar[str] = "warning"
    group: str
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecreated(Event):
    """A topic was deleted and made anew while it was consumed: the positions belong to records that are gone."""

    level: ClassVar[str] = "error"
    group: str
    topic: str
    old_id: str
    new_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLost(Event):
    """Records were deleted before anybody had read them: from `start` up to, not including, `end`."""

    level: ClassVar[str] = "error"
    topic: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished(Event):
    """A singleton job ran to its end."""

    job: str
    token: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Event):
    """A singleton job raised; its next period goes on."""

    level: ClassVar[str] = "error"
    job: str
    token: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """`penstock work` started a process; it loads the application now."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReady(Event):
    """A process of `penstock work` has loaded the application, and begins to work."""

    number: int
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStopped(Event):
    """A process of `penstock work` ended as it was asked to."""

    number: int
    pid: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDied(Event):
    """A process of `penstock work` ended, and nobody had asked it to; below 0 the code is a signal."""

    level: ClassVar[str] = "warning"
    number: int
    pid: int
    exit_code: int
    restart_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled(Event):
    """A process of `penstock work` did not end in its time of grace; what it had in hand comes back."""

    level: ClassVar[str] = "error"
    number: int
    pid: int
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTooLarge(Event):
    """A process of `penstock work` takes more memory than it may: it is drained and replaced."""

    level: ClassVar[str] = "warning"
    number: int
    pid: int
    resident_mb: float
    memory_max_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChanged(Event):
    """With `--reload`: a file was changed, so all processes are replaced."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesSent(Event):
    """Messages of one call were acknowledged, so long after it began."""

    level: ClassVar[str] = "debug"
    queue: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived(Event):
    """Messages of a queue were granted to us, and go to its handler."""

    level: ClassVar[str] = "debug"
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesBegun(Event):
    """A handler began with messages that had been due for so long, on average."""

    level: ClassVar[str] = "debug"
    queue: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlersReturned(Event):
    """A handler was called so often, and took so long each time, on average; for a message, or for a batch."""

    level: ClassVar[str] = "debug"
    queue: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounted(Event):
    """How many messages are in which state, in the partitions that are ours; told every few seconds."""

    level: ClassVar[str] = "debug"
    queue: str
    ready: int
    leased: int
    waiting: int
    oldest_age_s: float
    """Of the oldest that is not finished; 0 without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesAcked(Event):
    """The log has these as finished."""

    level: ClassVar[str] = "debug"
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRedelivered(Event):
    """Messages come again: after a failure (retry), given back without one (released), after a lost lease, or because
    their partition went to somebody else before they were handed out (hand_over).
    """

    level: ClassVar[str] = "debug"
    queue: str
    cause: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesBuried(Event):
    """Messages were given up; copies go to the dead letters."""

    level: ClassVar[str] = "warning"
    queue: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFailed(Event):
    """A handler raised; `becomes` says what that means for the message."""

    level: ClassVar[str] = "warning"
    queue: str
    message: str
    attempt: int
    error: str
    becomes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOverTime(Event):
    """A handler took longer for a message than the queue allows: it goes back, whatever the handler still does."""

    level: ClassVar[str] = "warning"
    queue: str
    message: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """Messages that we had in hand went to somebody else; `token` is the epoch of the lease."""

    level: ClassVar[str] = "warning"
    queue: str
    partition: int
    token: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomesDropped(Event):
    """What a handler made of messages came too late: their lease had passed on."""

    level: ClassVar[str] = "warning"
    queue: str
    partition: int
    token: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLanded(Event):
    """A micro-batch is in its table: so many rows, in this version."""

    level: ClassVar[str] = "debug"
    pipeline: str
    table: str
    batch: int
    version: int
    rows: int
    bad: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeBadMessages(Event):
    """Messages that are no rows: in the dead letters of this version, or left out (version -1)."""

    level: ClassVar[str] = "warning"
    pipeline: str
    count: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTableMade(Event):
    pipeline: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeBatchesResized(Event):
    """A stream was begun again with batches of another size, because the rows are not as large as was thought."""

    level: ClassVar[str] = "debug"
    pipeline: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStreamRestarted(Event):
    """A stream is begun again from what its table has, after something that passes."""

    level: ClassVar[str] = "warning"
    pipeline: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOffsetsNotShown(Event):
    """The offsets of a group could not be committed for lag tools; the table has them all the same."""

    level: ClassVar[str] = "warning"
    group: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineWaits(Event):
    """A pipeline does not run yet: its locks belong to another process, or are just being taken."""

    pipeline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineStarted(Event):
    """A pipeline holds its locks, and its stream runs."""

    pipeline: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLockLost(Event):
    """A pipeline was stopped because it can no longer be sure of a lock; it waits to get it back."""

    level: ClassVar[str] = "warning"
    pipeline: str
    lock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineEnded(Event):
    """A pipeline was stopped, or has landed all that it was to land."""

    pipeline: str
    version: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineFailed(Event):
    """A pipeline ended by itself, and does not come back."""

    level: ClassVar[str] = "error"
    pipeline: str
    error: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeProgressed(Event):
    """How far a pipeline is, every few seconds; rows and bad messages count from its start."""

    level: ClassVar[str] = "debug"
    pipeline: str
    state: str
    version: int
    rows: int
    bad: int
    rows_per_second: float
    lag_messages: int
    lag_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMaintained(Event):
    """Small files became large ones, and files that nobody needs any more were removed."""

    pipeline: str
    table: str
    files_compacted: int
    files_written: int
    files_removed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMaintenanceFailed(Event):
    """The table is as it was; it is tried again in the next period."""

    level: ClassVar[str] = "warning"
    pipeline: str
    table: str
    reason: str


Listener = Callable[[Event], None]

_listeners: list[Listener] = []


def tell(event: Event) -> None:
    """Give the event to every listener, in the order in which they subscribed."""
    for listener in _listeners:
        listener(event)


def are_heard() -> bool:
    """Whether anybody listens: what costs much to tell need not be told to nobody."""
    return bool(_listeners)


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
