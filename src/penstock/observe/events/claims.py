"""What those tell who claim: the members of a group, jobs, and the workers of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.observe.events.telling import Event


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
