"""What becomes of the messages of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.observe.events.telling import Event


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
