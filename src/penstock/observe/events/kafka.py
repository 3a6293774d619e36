"""What writers tell: appends and transactions that did not go as they should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.observe.events.telling import Event


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
