"""A queue as its users know it: messages are sent to it, and one of the app's processes handles each.

orders = app.queue("orders", lease="30s", attempts_max=5, order="key")

@orders.handler(concurrency=16)
def charge(order: Order, message: penstock.Message) -> None: ...

orders.send(Order(id=1), key="customer-7")
app.work()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

from penstock.errors import ConfigError, UsageError
from penstock.kafka.topics import Admin
from penstock.queue.batch_pile import BatchPile
from penstock.queue.calling import Call, call_of
from penstock.queue.crew import crew_of
from penstock.queue.headers import Given
from penstock.queue.names import checked_queue, checked_topic
from penstock.queue.outgoing import When
from penstock.queue.payload import decoder
from penstock.queue.pile import Manner, MessagePile, Pile
from penstock.queue.receiving import PullPile, Receiving, timeout_of
from penstock.queue.retry import BackoffLike, RetryRules, retry_rules
from penstock.queue.running import Handling, Station
from penstock.queue.sending import Sender, Sent, Transaction
from penstock.queue.solitude import Solitude
from penstock.queue.terms import Terms
from penstock.queue.upkeep import make_topic
from penstock.queue.worker import Worker
from penstock.queue.writers import Durability, Writers
from penstock.settings import QueueSettings, Settings
from penstock.values import DurationLike, duration

Order = Literal["key"]
Delivery = Literal["at_least_once", "at_most_once"]
Start = Literal["earliest", "latest"]

F = TypeVar("F", bound=Callable[..., Any])

TAKE_MAX = 500
CONCURRENCY_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler, and how many of it work at once."""

    call: Call
    concurrency: int


class Queue:
    """Made by `App.queue`. All processes of an app must say the same of a queue."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        group: str,
        writers: Callable[[], Writers],
        solitude: Solitude,
        topic: str | None = None,
        order: Order | None = None,
        delivery: Delivery = "at_least_once",
        start: Start = "earliest",
        backoff_of: Mapping[type[BaseException], BackoffLike] | None = None,
        give_up_on: tuple[type[BaseException], ...] = (),
        **given: Any,
    ) -> None:
        """`given` are fields of QueueSettings that are other for this queue. Raises UsageError."""
        self.name = checked_queue(name)
        self.topic = checked_topic(name if topic is None else topic, settings)
        self.settings = _with(settings.queue, given)
        self.registered: Registered | None = None
        _check_choice("order", order, (None, *get_args(Order)))
        _check_choice("delivery", delivery, get_args(Delivery))
        _check_choice("start", start, get_args(Start))
        if order is not None and delivery == "at_most_once":
            raise UsageError(
                "at most once, a message is finished before it is handed out, so that none can wait for it",
                next_step='leave order out, or use delivery="at_least_once"',
            )
        self._all = replace(settings, queue=self.settings)
        self._group, self._writers, self._solitude = group, writers, solitude
        self._order, self._delivery, self._start = order, delivery, start
        self._rules: RetryRules = retry_rules(
            attempts_max=self.settings.attempts_max,
            first=self.settings.backoff,
            most=self.settings.backoff_max,
            backoff_of=backoff_of,
            give_up_on=give_up_on,
        )
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self._sender_of: Writers | None = None

    # Sending

    @property
    def sender(self) -> Sender:
        """What `send`, `send_soon` and `send_many` go through. The topic is made if it is missing."""
        writers = self._writers()
        with self._lock:
            if self._sender is None or self._sender_of is not writers:
                with Admin(self._all.kafka) as admin:
                    make_topic(admin, self.topic, partitions=self.settings.partitions)
                self._sender = Sender(self._all.kafka, self.name, topic=self.topic, writers=writers)
                self._sender_of = writers
            return self._sender

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

        Raises what `Sender.send` raises.
        """
        return self.sender.send(
            value,
            key=key,
            headers=headers,
            id=id,
            delay=delay,
            at=at,
            ttl=ttl,
            durability=durability,
            transaction=transaction,
        )

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
        """Send one message without waiting; the future has what `send` returns or raises."""
        return self.sender.send_soon(
            value, key=key, headers=headers, id=id, delay=delay, at=at, ttl=ttl, durability=durability
        )

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

        Raises NotAllSent, and what `Sender.send_many` raises.
        """
        return self.sender.send_many(
            values, headers=headers, delay=delay, at=at, ttl=ttl, durability=durability, transaction=transaction
        )

    # Handling

    def handler(self, *, concurrency: int = 1, batch: int | None = None) -> Callable[[F], F]:
        """A function that handles messages while the app works: `def` in threads, `async def` as tasks of one loop.

        `batch`: it gets up to so many at once, and answers None, one answer for each, or by number. Raises UsageError.
        """
        if callable(concurrency):
            raise UsageError("handler was given a function", next_step="write @orders.handler() with brackets")
        _check_number("concurrency", concurrency, CONCURRENCY_MAX)
        if batch is not None:
            _check_number("batch", batch, 100_000)

        def registered(function: F) -> F:
            if self.registered is not None:
                raise UsageError(
                    f"queue {self.name} has the handler {self.registered.call.name} already",
                    next_step="give another queue to this one, or call both from one function",
                )
            self.registered = Registered(call_of(function, batch=batch), concurrency)
            return function

        return registered

    def station(self) -> Station:
        """The queue at work in this process. Raises UsageError without a handler."""
        if self.registered is None:
            raise UsageError(f"queue {self.name} has no handler", next_step="put @orders.handler() on a function")
        call, concurrency = self.registered.call, self.registered.concurrency

        def handling(worker: Worker) -> Handling:
            return crew_of(call, self._pile(call, worker), concurrency=concurrency)

        return self._station(handling, take_max=call.batch or TAKE_MAX)

    def _pile(self, call: Call, worker: Worker) -> Pile[Any]:
        ways: dict[str, Any] = {
            "tell": worker.tell,
            "is_good": worker.is_good,
            "note_progress": worker.note_progress,
        }
        manner = self._manner(call.decode)
        if call.batch is None:
            return MessagePile(manner, **ways)
        return BatchPile(manner, batch_max=call.batch, **ways)

    def receive(
        self, kind: Any = Any, *, timeout: DurationLike | None = None, grace: DurationLike | None = None
    ) -> Receiving:
        """Pull style: iterate over it. `kind` is the type of the payloads; it ends after `timeout` without a message.

        The first `timeout` counts from when it has its partitions, or after ten seconds without any.
        Leaving gives back what was not settled, after `grace`.
        """
        piles: list[PullPile] = []
        manner = self._manner(decoder(kind))

        def handling(worker: Worker) -> Handling:
            pile = PullPile(manner, tell=worker.tell, is_good=worker.is_good, note_progress=worker.note_progress)
            piles.append(pile)
            return pile

        grace = self.settings.grace if grace is None else duration(grace)
        return Receiving(self._station(handling, take_max=TAKE_MAX), piles, timeout=timeout_of(timeout), grace=grace)

    def _manner(self, decode: Any) -> Manner:
        limit = self.settings.time_limit
        return Manner(
            queue=self.name,
            rules=self._rules,
            decode=decode,
            time_limit_ms=None if limit is None else int(limit),
            is_ordered=self._order == "key",
            is_acked_first=self._delivery == "at_most_once",
        )

    def _station(self, handling: Callable[[Worker], Handling], *, take_max: int) -> Station:
        own = self.settings
        terms = Terms(
            lease_ms=int(own.lease),
            attempts_max=own.attempts_max,
            in_hand_max=own.in_hand_max,
            in_hand_bytes_max=own.in_hand_max_bytes,
            per_key_max=own.in_hand_max_per_key,
            per_key_bytes_max=own.in_hand_max_bytes_per_key,
            gaps_max=own.gaps_max,
            take_max=take_max,
            is_acked_first=self._delivery == "at_most_once",
            is_ordered=self._order == "key",
        )
        return Station(
            self._all,
            queue=self.name,
            topic=self.topic,
            group=self._group,
            terms=terms,
            handling=handling,
            solitude=self._solitude,
            starts_at_end=self._start == "latest",
        )


_DURATIONS = ("lease", "backoff", "backoff_max", "time_limit", "grace")


def _with(settings: QueueSettings, given: Mapping[str, Any]) -> QueueSettings:
    known = {name: value for name, value in given.items() if value is not None}
    for name in _DURATIONS:
        if name in known:
            known[name] = duration(known[name])
    try:
        return replace(settings, **known)
    except ConfigError as problem:
        raise UsageError(problem.what, next_step=problem.next_step) from problem


def _check_choice(name: str, given: object, choices: tuple[str | None, ...]) -> None:
    if given not in choices:
        listed = " or ".join("None" if choice is None else f'"{choice}"' for choice in choices)
        raise UsageError(f"{given!r} is no {name} of a queue", next_step=f"use {listed}")


def _check_number(name: str, given: object, most: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise UsageError(f"{name} is {given!r}", next_step=f"use a whole number from 1 to {most}")
