"""The facts of a queue's ledger. Names are in the past tense, and part of the protocol."""

from __future__ import annotations

from typing import ClassVar

from penstock.ledger.codec import Record
from penstock.ledger.machine import Genesis
from penstock.queue.ranges import Ranges

ALL = "all"
"""In place of a queue's name: every queue. So no queue is called that."""

ERROR_BYTES_MAX = 4_096
PROGRESS_BYTES_MAX = 1_024


class QueueFounded(Genesis, frozen=True, tag="genesis"):
    """What this partition of the ledger is for."""

    version: int
    topic_id: str
    """Of the topic with the messages: one that was made anew under the same name has another."""
    start: int
    """The position at the beginning: what is below it was never of this queue."""
    queues: tuple[str, ...]
    """Patterns of the names of the queues that the group serves."""


# Leases


class Taken(Record, frozen=True):
    """Asks to lease these offsets; the log says which."""

    comes_back_equal: ClassVar[bool] = True
    worker: str
    """Unique for each start of a process."""
    request: int
    """A number of the worker's own, by which it knows the answer."""
    ranges: Ranges
    lease_ms: int
    producer: str | None = None
    """The transactional id that will write the acks: only where that must be exactly once."""
    alone: bool = False
    """Whether the worker has nothing else in hand: then it is known whom to blame if it dies."""


class Renewed(Record, frozen=True):
    worker: str
    epochs: tuple[int, ...]


class LeaseFenced(Record, frozen=True):
    """The lease's producer was fenced: it can commit no more, so the lease ends, as a loss."""

    epoch: int


# What became of leased offsets


class Acked(Record, frozen=True):
    comes_back_equal: ClassVar[bool] = True
    epoch: int
    ranges: Ranges
    ids: tuple[str, ...] = ()
    """The messages' ids, for those who search; the fold does not look at them."""


class Released(Record, frozen=True):
    """Back to the queue, now or later."""

    comes_back_equal: ClassVar[bool] = True
    epoch: int
    ranges: Ranges
    delay_ms: int = 0
    counts: bool = False
    """Whether it was an attempt."""
    error: str = ""


class Buried(Record, frozen=True):
    """Never handed out again; to be copied to the dead letters. It was an attempt."""

    epoch: int
    ranges: Ranges
    reason: str = ""
    error: str = ""


class Progressed(Record, frozen=True):
    """What the next attempt of a long task begins with, if there is one."""

    epoch: int
    offset: int
    data: bytes


# Dead letters


class Copied(Record, frozen=True):
    ranges: Ranges


class Redriven(Record, frozen=True):
    """These dead letters were sent again, as new messages."""

    ranges: Ranges
    by: str = ""


# Without a lease


class Dropped(Record, frozen=True):
    """Finished without work: of a foreign queue, purged, cancelled, expired, a duplicate, deleted, invisible."""

    ranges: Ranges
    reason: str = ""
    by: str = ""

    @property
    def is_by_retention(self) -> bool:
        """The message itself is gone: there is nothing left that could be copied."""
        return self.reason.endswith("retention")


class Kept(Record, frozen=True):
    """Copied out of reach of the topic's retention."""

    ranges: Ranges


class Paused(Record, frozen=True):
    """Until the log clock is there (or until resumed), nothing is granted; of one queue: owners do not ask."""

    queue: str = ALL
    until_ms: int | None = None
    by: str = ""
    reason: str = ""


class Resumed(Record, frozen=True):
    queue: str = ALL
    by: str = ""


class QueuesChanged(Record, frozen=True):
    """Replaces the patterns of the genesis."""

    queues: tuple[str, ...]
    by: str = ""


RECORD_TYPES: tuple[type[Record], ...] = (
    QueueFounded,
    Taken,
    Renewed,
    LeaseFenced,
    Acked,
    Released,
    Buried,
    Progressed,
    Copied,
    Redriven,
    Dropped,
    Kept,
    Paused,
    Resumed,
    QueuesChanged,
)
