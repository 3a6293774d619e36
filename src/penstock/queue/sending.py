"""Sending to a queue: one message, many, or one soon; each call says what became of it.

`send` and `send_soon` write an id on every message, so that one whose outcome is unknown can be named and looked for.
`send_many` writes the ids that it is given: a message without the header has the id of its place (`place_id`), which
no other message has. A header would cost more than all the rest of a send.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, Self

from penstock.errors import NotAllSent, NotSent, OutcomeUnknown, PenstockError, UsageError
from penstock.kafka.reporting import Lost, ReportingWriter, Tally, Unwritten
from penstock.kafka.writer import Headers
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.headers import Given
from penstock.queue.ids import new_id
from penstock.queue.names import checked_queue, checked_topic
from penstock.queue.outgoing import Outgoing, Prepared, Preparer, When, checked_payload_size, prepared
from penstock.queue.partitioning import Turns, partition_of
from penstock.queue.writers import Durability, Writers
from penstock.settings import KafkaSettings, SendSettings
from penstock.values import DurationLike

# One call to the client takes so many messages: enough that the call itself costs nothing.
_BATCH = 500


class Sent(NamedTuple):
    """A message that is in the log."""

    id: str
    partition: int
    offset: int | None
    """None where nobody tells: with durability "none", and in a transaction."""


class Transaction(Protocol):
    """An open one: `penstock.kafka.transactions.Transactions` after `begin`."""

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None: ...


class Sender:
    """Sends to one queue. Any number of threads may use it.

    With a key a message goes where Java's own producer would put it; without one, messages go to the partitions in
    turn.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        queue: str,
        *,
        topic: str | None = None,
        settings: SendSettings | None = None,
        writers: Writers | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`writers` are those of the application; without them it makes and closes its own."""
        self.queue = checked_queue(queue)
        self.topic = checked_topic(queue if topic is None else topic)
        self._named = None if self.queue == self.topic else self.queue
        self._is_owner = writers is None
        self._writers = Writers(kafka, settings) if writers is None else writers
        self._limits = settings or self._writers.settings
        self._now_ms = now_ms
        self._turns = Turns()

    def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Given | None = None,
        id: str | None = None,
        delay: DurationLike | None = None,
        at: When | None = None,
        ttl: DurationLike | None = None,
        durability: Durability = "replicated",
        transaction: Transaction | None = None,
    ) -> Sent:
        """Send one message; returns when it is acknowledged, or, in a transaction, when it is part of it.

        Raises UsageError before anything is sent; OutcomeUnknown with the id when it may or may not be in the log;
        NotFound, AccessDenied, TransientError and the like when it is not.
        """
        message = Outgoing(value, key, headers, new_id() if id is None else id, delay, at, ttl)
        if transaction is None:
            self._writers.get(durability).forbid_waiting_for_itself()
            return self._send_soon(message, durability).result()
        _checked_transaction(durability)
        letter, sent = self._placed(message, durability)
        transaction.send(self.topic, sent.partition, letter.value, key=letter.key, headers=letter.headers)
        return sent

    def send_soon(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Given | None = None,
        id: str | None = None,
        delay: DurationLike | None = None,
        at: When | None = None,
        ttl: DurationLike | None = None,
        durability: Durability = "replicated",
    ) -> Future[Sent]:
        """Send one message without waiting for its acknowledgement; the future has what `send` returns or raises.

        What is wrong with the call itself is raised at once. It waits only while the queue of what is under way is
        full. Messages of one thread to one partition keep their order among themselves. The future's callbacks run on
        the thread that hears of acknowledgements: keep them short. It cannot be cancelled.
        """
        message = Outgoing(value, key, headers, new_id() if id is None else id, delay, at, ttl)
        return self._send_soon(message, durability)

    def send_many(
        self,
        values: Iterable[Any],
        *,
        headers: Given | None = None,
        delay: DurationLike | None = None,
        at: When | None = None,
        ttl: DurationLike | None = None,
        durability: Durability = "replicated",
        transaction: Transaction | None = None,
    ) -> int:
        """Send values, or `Outgoing`s with a key or id of their own; returns how many, when all are acknowledged.

        What is said here holds for all that do not say it themselves. Raises UsageError before anything is sent, and
        NotAllSent, with each message that was refused or whose outcome is unknown, when all others are acknowledged.
        """
        common = Outgoing(None, None, headers, None, delay, at, ttl)
        values = _checked_values(values)
        if transaction is not None:
            _checked_transaction(durability)
            letters = self._prepared_all(values, common)
            for letter, partition in zip(letters, self._places(letters, "replicated"), strict=True):
                transaction.send(self.topic, partition, letter.value, key=letter.key, headers=letter.headers)
            return len(letters)
        began_s = time.monotonic()
        self._writers.get(durability).forbid_waiting_for_itself()
        many = self._plain(values, common, durability) or self._mixed(values, common, durability)
        lost = many.writer.wait(many.tally)
        self._announce(len(values) - len(lost), began_s)
        if lost:
            raise self._not_all(many, lost)
        return len(values)

    def close(self) -> None:
        """Wait for what is under way. Idempotent; writers that were given stay open."""
        if self._is_owner:
            self._writers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_soon(self, message: Outgoing, durability: Durability) -> Future[Sent]:
        letter, sent = self._placed(message, durability)
        future: Future[Sent] = Future()
        began_s = time.monotonic()
        # From here on it cannot be called back.
        future.set_running_or_notify_cancel()

        def report(offset: int | None, failure: Unwritten | None) -> None:
            if failure is None:
                # Whoever waits for it comes first.
                future.set_result(sent._replace(offset=offset))
                self._announce(1, began_s)
            else:
                future.set_exception(self._failure(failure, sent.id))

        self._writers.get(durability).send(
            self.topic, sent.partition, letter.value, key=letter.key, headers=letter.headers, on_report=report
        )
        return future

    def _announce(self, count: int, began_s: float) -> None:
        if count and events.are_heard(events.MessagesSent):
            tell(events.MessagesSent(queue=self.queue, count=count, seconds=time.monotonic() - began_s))

    def _placed(self, message: Outgoing, durability: Durability) -> tuple[Prepared, Sent]:
        if isinstance(message.value, Outgoing):
            raise UsageError(
                "send takes the value of a message, not an Outgoing",
                next_step="say key, id and the rest in the call itself, or use send_many",
            )
        letter = prepared(message, limits=self._limits, queue=self._named, now_ms=self._now_ms())
        partitions = self._writers.partitions(self.topic, durability)
        key = letter.key
        partition = self._turns.take(1, partitions) if key is None else partition_of(key, partitions)
        return letter, Sent(letter.id or "", partition, None)

    def _prepared_all(self, values: Sequence[Any], common: Outgoing) -> list[Prepared]:
        preparer = Preparer(common, limits=self._limits, queue=self._named, now_ms=self._now_ms())
        return [*map(preparer.prepare, values)]

    def _places(self, letters: Sequence[Prepared], durability: Durability) -> Iterator[int]:
        """The partition of each."""
        partitions = self._writers.partitions(self.topic, durability)
        turn = self._turns.take(sum(letter.key is None for letter in letters), partitions)
        for letter in letters:
            if letter.key is None:
                yield turn
                turn = (turn + 1) % partitions
            else:
                yield partition_of(letter.key, partitions)

    def _plain(self, values: Sequence[Any], common: Outgoing, durability: Durability) -> _Many | None:
        """The usual case of a great many: bytes and nothing else, which needs no look at each."""
        if self._named is not None or common != _NOTHING or set(map(type, values)) != {bytes}:
            return None
        checked_payload_size(max(map(len, values)), self._limits)
        writer = self._writers.get(durability)
        partitions = self._writers.partitions(self.topic, durability)
        turn = self._turns.take(len(values), partitions)
        tally, topic = writer.tally(self.topic), self.topic
        for start in range(0, len(values), _BATCH * partitions):
            window = values[start : start + _BATCH * partitions]
            for step in range(min(partitions, len(window))):
                records = [{"value": value} for value in window[step::partitions]]
                writer.send_batch(topic, (turn + step) % partitions, records, tally)

        def placed() -> Iterator[tuple[Prepared, int]]:
            for number, value in enumerate(values):
                yield Prepared(value, None, [], None), (turn + number) % partitions

        return _Many(writer, tally, placed)

    def _mixed(self, values: Sequence[Any], common: Outgoing, durability: Durability) -> _Many:
        letters = self._prepared_all(values, common)
        writer = self._writers.get(durability)
        tally, topic = writer.tally(self.topic), self.topic
        places = list(self._places(letters, durability)) if letters else []
        waiting: dict[int, list[dict[str, Any]]] = {}
        for number, (letter, partition) in enumerate(zip(letters, places, strict=True)):
            batch = waiting.setdefault(partition, [])
            if not letter.headers:
                batch.append({"value": letter.value, "key": letter.key})
            if batch and (letter.headers or len(batch) == _BATCH):
                # Before one with headers goes, what came before it in its partition.
                writer.send_batch(topic, partition, waiting.pop(partition), tally)
            if letter.headers:
                writer.send_counted(
                    topic,
                    partition,
                    letter.value,
                    key=letter.key,
                    headers=letter.headers,
                    number=number,
                    tally=tally,
                )
        for partition, batch in waiting.items():
            writer.send_batch(topic, partition, batch, tally)
        return _Many(writer, tally, lambda: zip(letters, places, strict=True))

    def _not_all(self, many: _Many, lost: Sequence[Lost]) -> NotAllSent:
        failures = tuple(
            NotSent(number, letter.id, self._failure(why, letter.id)) for number, letter, why in _found(many, lost)
        )
        unknown = sum(isinstance(failure.reason, OutcomeUnknown) for failure in failures)
        return NotAllSent(
            f"{len(failures)} messages were not sent to {self.topic} (of {unknown} nobody can tell):"
            f" the first is number {failures[0].index}: {failures[0].reason.what}",
            failures=failures,
            next_step="`failures` names them; all others are in the log",
        )

    def _failure(self, why: Unwritten, id: str | None) -> PenstockError:
        self._writers.forget(self.topic)
        if not why.in_doubt:
            return why.reason
        unknown = OutcomeUnknown(
            f"whether message {id or 'without an id'} is in {self.topic} is not known: {why.reason.what}",
            next_step="look for its id, or send it again with the same id: a handler may then see it twice",
            id=id,
        )
        unknown.__cause__ = why.reason
        return unknown


class _Many(NamedTuple):
    """What one `send_many` has sent, and, should it matter, what went where."""

    writer: ReportingWriter
    tally: Tally
    placed: Callable[[], Iterable[tuple[Prepared, int]]]


_NOTHING = Outgoing(None)


def _found(many: _Many, lost: Sequence[Lost]) -> Iterator[tuple[int, Prepared, Unwritten]]:
    """Which messages the lost records were. Of some that are alike in everything it may name another."""
    numbered = {each.number: each.why for each in lost if each.number is not None}
    alike: dict[tuple[int, bytes | None, bytes | None], list[Unwritten]] = defaultdict(list)
    for each in lost:
        if each.number is None:
            alike[each.partition, each.key, each.value].append(each.why)
    for number, (letter, partition) in enumerate(many.placed()):
        if number in numbered:
            yield number, letter, numbered[number]
        elif not letter.headers and (reasons := alike.get((partition, letter.key, letter.value))):
            yield number, letter, reasons.pop()


def _checked_values(values: Iterable[Any]) -> Sequence[Any]:
    if isinstance(values, str | bytes | bytearray | Mapping):
        raise UsageError(
            f"send_many takes many values, not one {type(values).__name__}", next_step="use send, or put it into a list"
        )
    return values if isinstance(values, list | tuple) else list(values)


def _checked_transaction(durability: Durability) -> None:
    if durability != "replicated":
        raise UsageError(
            f"a transaction is replicated, not {durability!r}", next_step="leave durability out, or the transaction"
        )
