"""Messages of a queue by their state, read without taking them.

What a message's own headers say (a delay, given at the send) is looked at too, so a message that is shown as ready
really is. Errors of earlier attempts are known back to the newest snapshot of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from penstock.claims.dead_letters import dead_letter_topic
from penstock.errors import NotFound
from penstock.kafka.reader import Reader, Received
from penstock.kafka.topics import Admin
from penstock.ledger.log import Entry
from penstock.ledger.machine import Fold, Judged
from penstock.queue.headers import RESERVED, marks_of
from penstock.queue.ids import place_id
from penstock.queue.leases import Lease
from penstock.queue.look import (
    Named,
    Shown,
    check_founded,
    dead_count,
    now_in,
    ranges_in,
    read_ledger,
    shown_state,
    topic_bounds,
)
from penstock.queue.records import Released
from penstock.queue.rulings import Ruling
from penstock.queue.spans import Spans
from penstock.queue.state import QueueMachine
from penstock.settings import Settings
from penstock.values import Bounds, TopicPartition

DEAD = "dead"
STATES = (Shown.READY.value, Shown.LEASED.value, Shown.WAITING.value, DEAD)

# Of one partition: so many messages are looked at for those that their own headers put into another state.
SCAN_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """One message, as it lies in its topic; of a dead one, its copy."""

    partition: int
    offset: int
    id: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    """The sender's own."""
    time_ms: int
    attempt: int
    """Which one would be next, or is under way; of a dead one, how many there were."""
    losses: int = 0
    due_ms: int | None = None
    expires_ms: int | None = None
    lease: Lease | None = None
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    messages: tuple[Peeked, ...]
    more: bool
    """Whether there are, or may be, others in this state."""
    missing: int = 0
    """Dead ones of which there is no letter."""
    halted: Mapping[int, str]


class Errors:
    """What the handlers said of messages that they gave back, by partition and offset."""

    def __init__(self) -> None:
        self._told: dict[int, Spans[str]] = {}

    def witness(self, entry: Entry, judged: Judged) -> None:
        if isinstance(judged.record, Released) and judged.record.error and isinstance(judged.verdict, Ruling):
            told = self._told.setdefault(entry.partition, Spans(""))
            for start, end in judged.verdict.covered:
                told.put(start, end, judged.record.error)

    def of(self, partition: int, offset: int) -> str | None:
        return (self._told[partition].at(offset) or None) if partition in self._told else None


def peek(settings: Settings, named: Named, *, state: str, limit: int, wall_ms: int, queue: str | None = None) -> Peek:
    """Up to `limit` messages in that state, the oldest first; `queue` where several share the topic.

    Raises NotFound if the topic, or the ledger's topics, are not there, Refused if the ledger is another topic's.
    """
    errors = Errors()
    folds = read_ledger(settings, named.ledger, witness=errors.witness)
    with Admin(settings.kafka) as admin, Reader(settings.kafka) as reader:
        source = named.topic if state != DEAD else dead_letter_topic(settings, named.topic, named.group)
        topics = admin.describe([named.topic, source])
        if named.topic not in topics:
            raise NotFound(f"there is no topic {named.topic}", next_step="`penstock queues` lists the queues")
        check_founded(named, folds, topics[named.topic].topic_id)
        bounds = topic_bounds(admin, source, topics[source].partitions) if source in topics else {}
        found: list[Peeked] = []
        is_cut, letters = False, 0
        for partition in sorted(bounds):
            fold = folds.get(partition) or Fold(QueueMachine())
            desk = _Look(named.topic, partition, fold, now_in(fold, wall_ms), errors, queue)
            place = TopicPartition(source, partition)
            if state == DEAD:
                messages = list(desk.letters(reader, place, bounds[partition], limit + 1))
            else:
                messages = list(islice(desk.messages(reader, place, bounds[partition], Shown(state)), limit + 1))
            is_cut = is_cut or desk.is_cut
            letters += len(messages)
            found += messages
    found.sort(key=attrgetter("time_ms", "partition", "offset"))
    dead = sum(dead_count(fold.machine) for fold in folds.values()) if state == DEAD else 0
    is_whole = len(found) <= limit and not is_cut
    return Peek(
        messages=tuple(found[:limit]),
        more=not is_whole,
        missing=max(0, dead - letters) if is_whole and queue is None else 0,
        halted={partition: fold.halt.reason for partition, fold in folds.items() if fold.halt is not None},
    )


class _Look:
    """At one partition."""

    def __init__(
        self, topic: str, partition: int, fold: Fold[QueueMachine], now_ms: int, errors: Errors, queue: str | None
    ) -> None:
        self._topic, self._partition, self._now_ms, self._errors = topic, partition, now_ms, errors
        self._machine, self._queue = fold.machine, queue
        self.is_cut = False
        """There was more to look at than was looked at."""

    def messages(self, reader: Reader, place: TopicPartition, bounds: Bounds, state: Shown) -> Iterator[Peeked]:
        for wanted in (Shown.WAITING, Shown.READY) if state is Shown.WAITING else (state,):
            ranges = ranges_in(self._machine, bounds, wanted, self._now_ms)
            for record in self._bounded(reader.ranges(place, ranges)):
                if self._is_of_queue(record) and self._state(record, wanted) is state:
                    yield self._peeked(record)

    def _state(self, record: Received, in_ledger: Shown) -> Shown:
        due_ms = marks_of(record.headers()).due_ms
        is_delayed = in_ledger is Shown.READY and due_ms is not None and due_ms > self._now_ms
        return Shown.WAITING if is_delayed else in_ledger

    def _bounded(self, records: Iterable[Received]) -> Iterator[Received]:
        for number, record in enumerate(records):
            if number == SCAN_MAX:
                self.is_cut = True
                return
            yield record

    def _is_of_queue(self, record: Received) -> bool:
        return self._queue is None or marks_of(record.headers()).queue == self._queue

    def _peeked(self, record: Received) -> Peeked:
        offset, headers = record.offset(), record.headers() or []
        cell, marks = self._machine.cells.at(offset), marks_of(headers)
        is_leased = shown_state(self._machine, cell, self._now_ms) is Shown.LEASED
        return Peeked(
            partition=self._partition,
            offset=offset,
            id=marks.id or place_id(self._topic, self._partition, offset),
            key=record.key(),
            value=record.value(),
            headers=_own(headers),
            time_ms=record.timestamp()[1],
            attempt=cell.attempt,
            losses=cell.losses,
            due_ms=cell.due_ms or marks.due_ms,
            expires_ms=marks.expires_ms,
            lease=self._machine.leases[cell.epoch] if is_leased else None,
            error=self._errors.of(self._partition, offset),
        )

    def letters(self, reader: Reader, place: TopicPartition, bounds: Bounds, limit: int) -> Iterator[Peeked]:
        """Of those that are dead now: a letter that was redriven stays in its topic for a while."""
        left = min(limit, dead_count(self._machine))
        seen: set[int] = set()
        if not left:
            return
        for record in reader.ranges(place, [(bounds.start, bounds.stable_end)]):
            letter = self._letter(record)
            # A second copy of the same message says the same.
            if letter is not None and letter.offset not in seen and self._is_of_queue(record):
                seen.add(letter.offset)
                yield letter
                if len(seen) == left:
                    return

    def _letter(self, record: Received) -> Peeked | None:
        headers = record.headers() or []
        told = {name: value for name, value in headers if name.startswith(RESERVED) and value is not None}
        offset = _number(told.get("penstock-origin-offset"))
        if record.value() is None or offset is None or not self._machine.dead.at(offset):
            return None
        marks = marks_of(headers)
        return Peeked(
            partition=self._partition,
            offset=offset,
            id=marks.id or place_id(self._topic, self._partition, offset),
            key=told.get("penstock-origin-key"),
            value=None if "penstock-origin-null-value" in told else record.value(),
            headers=_own(headers),
            time_ms=_number(told.get("penstock-origin-timestamp-ms")) or record.timestamp()[1],
            attempt=_number(told.get("penstock-attempts")) or 0,
            due_ms=marks.due_ms,
            expires_ms=marks.expires_ms,
            reason=_text(told.get("penstock-reason")),
            error=_text(told.get("penstock-error")),
        )


def _own(headers: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, value) for name, value in headers if not name.startswith(RESERVED))


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
