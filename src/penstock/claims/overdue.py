"""Messages that were handed out and not acked in time: told, and then handled, so that none blocks a position for ever.

A thread of its own looks after them, because the user's code may be stuck in the very message that is overdue. It
touches no consumer: it finishes, copies and gives back.

    handed out ── not acked within ack_timeout ──▶ MessageOverdue ──▶ dead_letter: copied, then it counts as finished
                                                                  ├─▶ skip: it counts as finished
                                                                  └─▶ release: its partition is given back as it is
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from penstock.claims.batch import Message, TimedBatch
from penstock.claims.terms import OnOverdue, Overdue
from penstock.errors import PenstockError
from penstock.kafka.reader import Received
from penstock.observe import events
from penstock.observe.events import tell
from penstock.values import Duration

LOOK_EVERY_S = 0.25
BURY_AGAIN_S = 5.0

log = logging.getLogger("penstock.claims")


class Hands:
    """What is in the user's hands, since when. Pure; times are given."""

    def __init__(self) -> None:
        self._since: dict[TimedBatch, dict[int, float]] = {}

    def give(self, batch: TimedBatch, offsets: Iterable[int], now_s: float) -> None:
        self._since.setdefault(batch, {}).update(dict.fromkeys(offsets, now_s))

    def take_overdue(self, since_s: float) -> Iterator[tuple[TimedBatch, dict[int, float]]]:
        """What was handed out before `since_s` and is not finished, with its time; nobody is told of it twice."""
        for batch, times in list(self._since.items()):
            if batch.is_over or not (left := set(batch.unfinished())):
                del self._since[batch]
            elif not batch.is_lost:
                late = {offset: at_s for offset, at_s in times.items() if at_s <= since_s}
                for offset in late:
                    del times[offset]
                if waited := {offset: at_s for offset, at_s in late.items() if offset in left}:
                    yield batch, waited


@dataclass(slots=True)
class _Burial:
    batch: TimedBatch
    offsets: list[int]
    again_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How overdue messages leave."""

    bury: Callable[[list[Received], str], None]
    release: Callable[[TimedBatch], None]
    stalled: Callable[[float], None]
    """Nobody has come back for more for so many seconds, while a message is overdue."""


class Watch:
    """Looks after what is in the user's hands, from `start` to `close`."""

    def __init__(self, timeout: Duration, on_overdue: OnOverdue, ways: Ways, *, group: str) -> None:
        self._timeout, self._on_overdue, self._ways, self._group = timeout, on_overdue, ways, group
        self._hands = Hands()
        self._away_since_s: float | None = None
        self._burials: list[_Burial] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-overdue-{group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(5)

    # What the iterating thread tells

    def given(self, batch: TimedBatch, offsets: Iterable[int]) -> None:
        with self._lock:
            self._away_since_s = time.monotonic()
            self._hands.give(batch, offsets, self._away_since_s)

    def back(self) -> None:
        """The user came back for more."""
        with self._lock:
            self._away_since_s = None

    # The thread

    def _run(self) -> None:
        while not self._ending.wait(min(LOOK_EVERY_S, self._timeout.seconds / 4)):
            try:
                self.look(time.monotonic())
            except Exception:
                # A thread that ended in silence would let messages block for ever.
                log.exception("looking after overdue messages failed; the next look goes on")

    def look(self, now_s: float) -> None:
        with self._lock:
            overdue = list(self._hands.take_overdue(now_s - self._timeout.seconds))
            away_s = 0.0 if self._away_since_s is None else now_s - self._away_since_s
            if overdue and away_s >= self._timeout.seconds:
                # With the lock held: the user cannot come back between the question and this.
                self._ways.stalled(away_s)
        for batch, waited in overdue:
            try:
                self._handle(batch, {offset: now_s - at_s for offset, at_s in waited.items()})
            except Exception:
                # Nobody is told of the others again.
                log.exception("an overdue batch was not handled; the others are")
        self._bury_due(now_s)

    def _handle(self, batch: TimedBatch, waited_s: dict[int, float]) -> None:
        buried: list[int] = []
        for message in batch:
            if message.offset not in waited_s:
                continue
            way = self._way_of(message)
            self._tell(message, waited_s[message.offset], way)
            if way == "dead_letter":
                buried.append(message.offset)
            elif way == "skip":
                batch.finish(message.offset)
            else:
                self._ways.release(batch)
        if buried:
            self._burials.append(_Burial(batch, buried))

    def _way_of(self, message: Message) -> Overdue:
        if not callable(self._on_overdue):
            return self._on_overdue
        try:
            way = self._on_overdue(message)
        except Exception as failure:  # noqa: BLE001 - whatever the user's function raises, the message must not block
            tell(events.CallbackFailed(callback="on_overdue", reason=f"{type(failure).__name__}: {failure}"))
            return "release"
        if way not in get_args(Overdue):
            tell(events.CallbackFailed(callback="on_overdue", reason=f"it returned {way!r}"))
            return "release"
        return way

    def _tell(self, message: Message, waited_s: float, way: Overdue) -> None:
        tell(
            events.MessageOverdue(
                group=self._group,
                topic=message.topic,
                partition=message.partition,
                offset=message.offset,
                waited_ms=int(waited_s * 1_000),
                way=way,
            )
        )

    def _bury_due(self, now_s: float) -> None:
        """A copy first, then it counts as finished. Where that fails, again: until then the position stays."""
        for burial in [burial for burial in self._burials if burial.again_at_s <= now_s]:
            if self._is_buried(burial):
                self._burials.remove(burial)
            else:
                burial.again_at_s = now_s + BURY_AGAIN_S

    def _is_buried(self, burial: _Burial) -> bool:
        batch, left = burial.batch, set(burial.batch.unfinished())
        if batch.is_over:
            return True
        records = [record for record in batch.records if record.offset() in left.intersection(burial.offsets)]
        try:
            self._ways.bury(records, f"not acked within {self._timeout}")
        except Exception as failure:
            if not isinstance(failure, PenstockError):
                log.exception("burying overdue messages failed; trying again in %g s", BURY_AGAIN_S)
            first = batch.records[0]
            tell(events.BurialFailed(topic=first.topic(), partition=first.partition(), reason=str(failure)))
            return False
        for record in records:
            batch.finish(record.offset())
        return True
