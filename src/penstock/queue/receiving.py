"""Pull style: messages are taken one by one, by a loop of the user's own.

for message in orders.receive():
    with message:                    # acked at the end of the block; an exception is a failed attempt
        charge(message.payload)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from penstock.errors import BrokerUnavailable, UsageError
from penstock.queue.hand import ACKED, GIVEN_BACK, Hand, Outcome
from penstock.queue.message import Bury, Message, Retry
from penstock.queue.pile import Manner, MessagePile, Seat, _now_ms
from penstock.queue.running import Station
from penstock.values import Duration, DurationLike, duration

PARTITIONS_WITHIN_S = 10.0
"""A receiver that has no partition by then will hardly get one soon."""


class PulledMessage(Message):
    """A message that its receiver settles: by leaving a `with` block, or by one of the methods; once, and then no more.

    To settle it twice raises UsageError. What is settled after the lease was lost does not count.
    """

    __slots__ = ("_is_settled", "_seat")

    def __init__(self, message: Message, seat: Seat[Message]) -> None:
        super().__init__(message._record, message._start, message._hand, message._host)
        self._deadline_ms = message._deadline_ms
        self._seat = seat
        self._is_settled = False

    def ack(self) -> None:
        self._settle(ACKED)

    def retry(self, after: DurationLike | None = None) -> None:
        """This attempt failed: again after this time (without one: the back-off), or into the dead letters."""
        self._settle(self._pile.outcome(self.attempt, Retry(after)))

    def release(self) -> None:
        """Give it back; it costs no attempt, and comes again at once."""
        self._settle(GIVEN_BACK)

    def bury(self, reason: str = "") -> None:
        self._settle(self._pile.outcome(self.attempt, Bury(reason)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._is_settled:
            return False
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            # The loop itself is ended: it is nothing that the message did.
            self.release()
            return False
        self._settle(self._pile.outcome_of_failure(self, error), error)
        return True

    @property
    def _pile(self) -> PullPile:
        pile = self._host
        assert isinstance(pile, PullPile)
        return pile

    def _settle(self, outcome: Outcome, failure: BaseException | None = None) -> None:
        if self._is_settled:
            raise UsageError(f"{self!r} was settled already", next_step="say once what becomes of it")
        self._is_settled = True
        self._pile.settled(self, outcome, failure)


class PullPile(MessagePile):
    """Every message that was pulled has a seat of its own until it is settled."""

    def __init__(self, manner: Manner, **worker: Any) -> None:
        super().__init__(manner, **worker)
        self._work = threading.Condition()
        self._out: dict[int, Seat[Message]] = {}

    def pull(self, timeout_s: float) -> PulledMessage | None:
        seat: Seat[Message] = Seat(self.tell, self.times.note)
        message = self.take(seat)
        if message is None:
            with self._work:
                if not len(self) and not self.is_closing:
                    self._work.wait(timeout_s)
            message = self.take(seat)
        if message is None:
            return None
        pulled = PulledMessage(message, seat)
        seat.current = pulled
        self._out[id(pulled)] = seat
        return pulled

    def settled(self, message: PulledMessage, outcome: Outcome, failure: BaseException | None) -> None:
        seat = message._seat
        self._out.pop(id(message), None)
        if self._claim(seat, message):
            self._settled(seat, message, outcome, failure)
            self._wake()

    # As whoever handles

    def give(self, hand: Hand) -> int:
        count = super().give(hand)
        self._wake()
        return count

    def look(self) -> None:
        self.times.report()
        if self.manner.time_limit_ms is None:
            return
        now_ms = _now_ms()
        for key in list(self._out):
            seat = self._out.get(key)
            message = None if seat is None else seat.current
            if seat is not None and message is not None and now_ms >= message._deadline_ms:
                self.over_time(seat, message)
                self._out.pop(key, None)

    def stop_beginning(self) -> None:
        self.is_closing = True
        self.empty()
        self._wake()

    def close(self) -> None:
        self.stop_beginning()

    def _wake(self) -> None:
        with self._work:
            self._work.notify_all()


class Receiving:
    """Yields messages as they come. Any number of threads may iterate; any thread may stop it.

    Used in a `with` statement it goes on until the block ends; else until its iteration does.
    """

    def __init__(self, station: Station, pile: list[PullPile], *, timeout: Duration | None, grace: Duration) -> None:
        self._station, self._pile, self._timeout, self._grace = station, pile, timeout, grace
        self._is_kept = self._is_stopped = False
        self._lock = threading.Lock()
        self._has_begun = False

    def __enter__(self) -> Self:
        self._is_kept = True
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[PulledMessage]:
        self._begin()
        try:
            yield from self._messages()
        finally:
            if not self._is_kept:
                self.close()

    def stop(self) -> None:
        """End all iterations; from any thread, or a signal handler. What was not settled is given back after grace."""
        self._is_stopped = True
        self._station.stop(self._grace)

    def close(self) -> None:
        """Stop, and wait until everything is told to the log."""
        self.stop()
        self._wait()

    @property
    def partitions(self) -> frozenset[int]:
        """Those that it takes messages from at the moment."""
        return self._station.partitions

    def _begin(self) -> None:
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                self._station.start()

    def _messages(self) -> Iterator[PulledMessage]:
        quiet = _Quiet(self._station, self._timeout)
        while self._station.is_running and not (self._pile and self._pile[0].is_closing):
            if not self._pile:
                time.sleep(0.02)
            elif (message := self._pile[0].pull(0.05)) is not None:
                yield message
                quiet.begins()
                continue
            if quiet.is_over:
                self._check_reached()
                return
        if not self._is_stopped:
            # It failed. With what, it says at its very end.
            self._wait()
        if self._station.failure is not None:
            raise self._station.failure

    def _wait(self) -> None:
        self._station.join(self._grace.seconds + 30)

    def _check_reached(self) -> None:
        if not self._pile:
            raise BrokerUnavailable(
                f"topics and ledger could not be reached in {self._timeout}", next_step="check the broker"
            )


class _Quiet:
    """How long there was no message, from when on there could have been one."""

    def __init__(self, station: Station, timeout: Duration | None) -> None:
        self._station, self._timeout = station, timeout
        self._since_s: float | None = None
        # Who gets no partition, because others have them all, is not to wait for ever.
        self._at_latest_s = time.monotonic() + PARTITIONS_WITHIN_S

    def begins(self) -> None:
        self._since_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        if self._timeout is None:
            return False
        now_s = time.monotonic()
        if self._since_s is None:
            if self._station.is_ready.is_set() or now_s >= self._at_latest_s:
                self._since_s = now_s
            return False
        return now_s - self._since_s >= self._timeout.seconds


def timeout_of(given: DurationLike | None) -> Duration | None:
    return None if given is None else duration(given)
