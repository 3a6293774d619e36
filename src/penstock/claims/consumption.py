"""What every way of consuming has in common: how messages are iterated, and how that ends.

with group.consume(["orders"]) as messages:
    signal.signal(signal.SIGTERM, lambda *_: messages.stop())
    for message in messages:
        charge(message.value, token=message.token)
        message.ack()
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from penstock.claims.batch import Batch, Message, TimedBatch
from penstock.claims.overdue import Watch
from penstock.values import TopicPartition


class Consumption(ABC):
    """Yields messages as they come. One thread iterates; any thread may ack, stop or close."""

    hands_out_lost = False
    """Whether records are handed out though their claim passed on meanwhile: they were counted as finished before."""

    def __init__(self) -> None:
        self._is_stopping = False
        self._is_closed = False
        # Held while the clients are used: whoever closes waits for that, and for nothing else.
        self._in_use = threading.RLock()
        self._waiting: deque[Batch] = deque()
        self._in_hand: Iterator[Message] = iter(())
        self._watch: Watch | None = None
        """Set where messages may be overdue."""

    # What a way of consuming brings along

    @property
    @abstractmethod
    def partitions(self) -> list[TopicPartition]:
        """Those that are read at the moment."""

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _next_batches(self) -> Sequence[Batch]:
        """What there is now; waits a moment for it, and is empty if nothing came."""

    @abstractmethod
    def _close(self) -> None:
        """Give back what is held, and close the clients. Called once."""

    # What users see

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """One by one; ends after `timeout_s` without any, or when stopped. Who breaks off may go on with another."""
        yield from self._rest_in_hand()
        for batch in self._batches(timeout_s):
            self._in_hand = iter(batch)
            yield from self._rest_in_hand()

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Many of one partition at a time; ends after `timeout_s` without any, or when stopped."""
        for batch in self._batches(timeout_s):
            if self._watch is None or not isinstance(batch, TimedBatch):
                yield batch
                continue
            self._watch.given(batch, batch.unfinished())
            yield batch
            self._watch.back()

    def stop(self) -> None:
        """End the iteration, from any thread or a signal handler; leaving the `with` block then gives all back.

        At least once, it ends at once, and what was not handed out yet stays for the next member. At most once, what
        is in hand is handed out first: it counts as finished already.
        """
        # A plain flag: a signal handler may come at any point, also while a lock is held.
        self._is_stopping = True

    def close(self) -> None:
        """Give every partition back with its position, so that the next member goes on from there. Idempotent."""
        self.stop()
        with self._in_use:
            if not self._is_closed:
                self._is_closed = True
                self._close()

    def _batches(self, timeout_s: float | None) -> Iterator[Batch]:
        quiet_since = time.monotonic()
        if self._watch is not None:
            self._watch.back()
        while True:
            # What was fetched for an iteration that was broken off comes first.
            while self._waiting and not self._ends_now:
                batch = self._waiting.popleft()
                if self.hands_out_lost or not batch.is_lost:
                    yield batch
                    quiet_since = time.monotonic()
            if self._is_stopping:
                return
            with self._in_use:
                if not self._is_closed:
                    self._waiting.extend(self._next_batches())
            if not self._waiting and timeout_s is not None and time.monotonic() - quiet_since > timeout_s:
                return

    def _rest_in_hand(self) -> Iterator[Message]:
        while not self._ends_now and (message := next(self._in_hand, None)) is not None:
            if message.is_lost and not self.hands_out_lost:
                continue
            if self._watch is None or not isinstance(message.batch, TimedBatch):
                yield message
                continue
            self._watch.given(message.batch, [message.offset])
            yield message
            self._watch.back()

    @property
    def _ends_now(self) -> bool:
        return self._is_stopping and not self.hands_out_lost
