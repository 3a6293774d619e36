"""The facts of the coordination ledger. Names are in the past tense, and part of the protocol."""

from __future__ import annotations

from typing import NamedTuple

from penstock.ledger.codec import Record
from penstock.ledger.machine import Genesis


class Slot(NamedTuple):
    """What is claimed: a partition of a topic, within a group; or, without a partition, a lock of that name."""

    group: str
    topic: str
    partition: int | None = None

    def __str__(self) -> str:
        # Topics have no slash; a lock that has one must not look like a partition.
        name = self.topic if self.partition is not None else self.topic.replace("/", "%2F")
        return "/".join(str(part) for part in (self.group, name, self.partition) if part is not None)


class ClaimsFounded(Genesis, frozen=True):
    """What all members must agree on."""

    partitions: int
    """P: how many partitions the coordination topic has; where a slot lives depends on it."""
    heartbeat_ms: int
    """HB: an owner is valid for 2 HB after its last renewal."""
    window: int
    """W: how far claimed ranges may run ahead of the position."""
    delivery_limit: int
    """D: charges after which an offset is granted only to be buried."""


# Whole slots


class Claimed(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    expects: int | None = None
    reclaim: bool = False
    producer: str | None = None


class Beat(NamedTuple):
    """One slot's part of a heartbeat."""

    slot: Slot
    epoch: int
    position: int | None = None
    producer: str | None = None
    fenced: tuple[str, ...] = ()


class Heartbeat(Record, frozen=True):
    """Keeps slots of one member in this coordination partition, with one verdict each. It never grants."""

    client: str
    instance: str
    beats: tuple[Beat, ...]


class ClaimReleased(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    epoch: int
    position: int | None = None
    reset: bool = False
    fenced: tuple[str, ...] = ()


class Intended(Record, frozen=True):
    """At most once: what is about to be committed, so that a crash shows what it may have lost."""

    slot: Slot
    client: str
    instance: str
    epoch: int
    upto: int


class ProducersFenced(Record, frozen=True):
    """Says that ids of a slot without a valid owner were initialised, so that they need not be feared any more."""

    slot: Slot
    client: str
    instance: str
    ids: tuple[str, ...]
    epoch: int | None = None
    """The slot's epoch as the sender had read it *before* it initialised them. A later grant may have put an id to new
    use; without the epoch the record would clear that one too. Old records lack it."""


class GroupPaused(Record, frozen=True):
    """Nobody but `by` is granted anything in the group until the log clock is at `until_ms`."""

    group: str
    by: str
    until_ms: int


# Ranges of offsets in a slot


class RangeClaimed(Record, frozen=True):
    """Asks for `n` offsets; the log says which."""

    slot: Slot
    client: str
    instance: str
    n: int
    start: int | None = None
    producer: str | None = None


class RangeAcked(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    epoch: int
    start: int
    end: int


class RangeReleased(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    epoch: int
    start: int
    end: int
    counts: bool


class RangeBuried(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    epoch: int
    start: int
    end: int


class RangeRenewed(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    epoch: int


class RangeFenced(Record, frozen=True):
    slot: Slot
    client: str
    instance: str
    epoch: int


RECORD_TYPES: tuple[type[Record], ...] = (
    ClaimsFounded,
    Claimed,
    Heartbeat,
    ClaimReleased,
    Intended,
    ProducersFenced,
    GroupPaused,
    RangeClaimed,
    RangeAcked,
    RangeReleased,
    RangeBuried,
    RangeRenewed,
    RangeFenced,
)
