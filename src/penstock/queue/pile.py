"""What is in hand and was not begun yet: messages or batches, taken from the pile by whoever handles them.

A handler works in a `Seat`: one thread, or one task. It takes the next piece, and says what became of it. Acks are
gathered and told as ranges; nothing is locked for a single message.

With a time limit there are two who may settle a piece: its handler, and the worker's thread. Who does claims it first.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Generic, TypeVar

from penstock.kafka.reader import Received
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.calling import outcome_of, outcome_of_failure
from penstock.queue.hand import ACKED, GIVEN_BACK, Hand, Outcome
from penstock.queue.message import Batch, Bury, Message, Retry
from penstock.queue.order import chains
from penstock.queue.payload import Decoder
from penstock.queue.ranges import Range
from penstock.queue.retry import RetryRules, error_text
from penstock.queue.stretch import Stretch
from penstock.queue.times import Times, Worked

Piece = TypeVar("Piece", bound=Message | Batch)
Tell = Callable[[Hand, Sequence[Range], Outcome], None]

_GATHER_MAX = 256
_GATHER_MS = 2

Chain = deque[tuple[Received, Range]]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True, eq=False)
class Seat(Generic[Piece]):
    """Where one piece at a time is worked on. Its acks are gathered here."""

    tell: Tell
    note: Callable[[Worked], object] = lambda worked: None
    current: Piece | None = None
    began_ms: int = 0
    chain: Any = None
    """What has to follow the current piece, in order, in this seat."""
    late: Piece | None = None
    """What was taken away from this seat, over time, until its handler returns."""
    hand: Hand | None = None
    start: int = 0
    end: int = 0
    gathered: int = 0
    since_ms: int = 0
    is_given_up: bool = False
    """Whoever sits here is stuck: another one was opened in its place."""

    def ack(self, hand: Hand, start: int, end: int) -> None:
        now_ms = _now_ms()
        if hand is self.hand and start == self.end:
            self.end = end
        else:
            self.flush(self.began_ms)
            self.hand, self.start, self.end, self.since_ms = hand, start, end, self.began_ms
        self.gathered += 1
        if self.gathered >= _GATHER_MAX or now_ms - self.since_ms >= _GATHER_MS:
            self.flush(now_ms)

    def flush(self, ended_ms: int | None = None) -> None:
        if self.hand is not None:
            self._note(self.hand, self.start, self.gathered, self.gathered, self.since_ms, ended_ms or _now_ms())
            self.tell(self.hand, ((self.start, self.end),), ACKED)
            self.hand, self.gathered = None, 0

    def note_call(self, hand: Hand, start: int, count: int = 1) -> None:
        """The handler was called once, for so many messages, that are not among the gathered acks."""
        self._note(hand, start, count, 1, self.began_ms, _now_ms())

    def _note(self, hand: Hand, start: int, messages: int, calls: int, began_ms: int, ended_ms: int) -> None:
        """Before anybody is told what became of them: then the hand still has them."""
        self.note(Worked(hand, hand.stretches, start, messages, calls, began_ms, ended_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How messages are treated in hand."""

    queue: str
    rules: RetryRules
    decode: Decoder
    time_limit_ms: int | None = None
    is_ordered: bool = False
    is_acked_first: bool = False
    chance: Callable[[], float] = field(default=random.random)


class Pile(ABC, Generic[Piece]):
    """Give puts on it, in the worker's thread; seats take from it, each in a thread of its own."""

    def __init__(self, manner: Manner, *, tell: Tell, is_good: Callable[[Hand], bool], note_progress: Any) -> None:
        self.manner, self.decode = manner, manner.decode
        self.tell: Tell = tell
        self.is_good, self.note_progress = is_good, note_progress
        self.times = Times(manner.queue)
        self.is_closing = False
        self.lock = threading.Lock()
        self._is_timed = manner.time_limit_ms is not None

    @abstractmethod
    def give(self, hand: Hand) -> int:
        """Put what is in the hand on the pile; returns how many could work on it at once."""

    @abstractmethod
    def take(self, seat: Seat[Piece]) -> Piece | None:
        """The next piece that may be begun; None if there is none now."""

    @abstractmethod
    def done(self, seat: Seat[Piece], piece: Piece, answer: object) -> None: ...

    @abstractmethod
    def failed(self, seat: Seat[Piece], piece: Piece, failure: BaseException) -> None: ...

    @abstractmethod
    def over_time(self, seat: Seat[Piece], piece: Piece) -> bool:
        """It took too long: what it still does, does not count. False if it was settled meanwhile."""

    @abstractmethod
    def deadline_ms(self, seat: Seat[Piece], piece: Piece) -> int:
        """By when it has to be done, where there is a time limit."""

    @abstractmethod
    def empty(self) -> None:
        """Give back, at no cost to them, all that was not begun."""

    @abstractmethod
    def __len__(self) -> int: ...

    # For all kinds

    def give_up(self, seat: Seat[Piece]) -> bool:
        """Whether its handler is still at what is over time: then whoever sits there takes nothing more."""
        with self.lock:
            seat.is_given_up = seat.late is not None
        return seat.is_given_up

    def extend(self, message: Message, by_ms: int) -> None:
        if self.manner.time_limit_ms is not None:
            message._deadline_ms = _now_ms() + by_ms

    def settle(self, message: Message, outcome: Outcome, failure: BaseException | None = None) -> None:
        """Tell what became of a message that was not simply acked."""
        if failure is not None and not isinstance(failure, Retry | Bury):
            self._announce(message, outcome, failure)
        self.tell(message._hand, (message._span,), outcome)

    def outcome(self, attempt: int, answer: object) -> Outcome:
        return outcome_of(answer, attempt=attempt, rules=self.manner.rules, chance=self.manner.chance())

    def outcome_of_failure(self, message: Message, failure: BaseException) -> Outcome:
        return outcome_of_failure(
            failure, attempt=message.attempt, rules=self.manner.rules, chance=self.manner.chance()
        )

    def _claim(self, seat: Seat[Piece], piece: Piece) -> bool:
        """Its handler has returned. False if it was over time before: then there is nothing to settle."""
        if not self._is_timed:
            seat.current = None
            return True
        with self.lock:
            is_ours = seat.current is piece
            seat.current = seat.late = None
        return is_ours

    def _taken_away(self, seat: Seat[Piece], piece: Piece) -> Seat[Piece] | None:
        """It and what has to follow it, in a seat of their own. None if its handler has returned."""
        with self.lock:
            if seat.current is not piece:
                return None
            apart = Seat(self.tell, self.times.note, current=piece, began_ms=seat.began_ms, chain=seat.chain)
            seat.current, seat.chain, seat.late = None, None, piece
        return apart

    def _announce(self, message: Message, outcome: Outcome, failure: BaseException) -> None:
        if self.manner.is_acked_first:
            becomes = "lost: it is handed out at most once"
        elif outcome.kind == "buried":
            becomes = f"buried: {outcome.reason}"
        else:
            becomes = f"tried again after {outcome.delay_ms} ms"
        error = error_text(failure).partition("\n")[0]
        tell(
            events.MessageFailed(
                queue=self.manner.queue, message=message.id, attempt=message.attempt, error=error, becomes=becomes
            )
        )


class MessagePile(Pile[Message]):
    """For handlers that get one message."""

    def __init__(self, manner: Manner, **worker: Any) -> None:
        super().__init__(manner, **worker)
        self._todo: deque[tuple[Received, int, Hand, Chain | None]] = deque()

    def __len__(self) -> int:
        return len(self._todo)

    def give(self, hand: Hand) -> int:
        # Not what the pile has grown by: others take from it meanwhile.
        count = 0
        if self.manner.is_ordered:
            for part in chains(hand.stretches):
                count += 1
                if isinstance(part, Stretch):
                    self._todo.append((part.records[0], part.start, hand, None))
                else:
                    (record, (start, _)), *followers = part
                    self._todo.append((record, start, hand, deque(followers) or None))
        else:
            for stretch in hand.stretches:
                self._todo.extend(zip(stretch.records, stretch.starts(), repeat(hand), repeat(None), strict=False))
                count += len(stretch.records)
        return count

    def take(self, seat: Seat[Message]) -> Message | None:
        while not self.is_closing:
            try:
                record, start, hand, seat.chain = self._todo.popleft()
            except IndexError:
                return None
            if self.is_good(hand):
                message = Message(record, start, hand, self)
                self._begin(seat, message)
                return message
            self._turn_down(seat, hand, (start, record.offset() + 1))
        return None

    def _begin(self, seat: Seat[Message], message: Message) -> None:
        seat.began_ms = now_ms = _now_ms()
        if self.manner.time_limit_ms is not None:
            message._deadline_ms = now_ms + self.manner.time_limit_ms
        seat.current = message

    def _turn_down(self, seat: Seat[Message], hand: Hand, part: Range) -> None:
        """Its lease is not certain any more: it is not begun. If it is ours after all, it comes again."""
        if hand.is_lost:
            seat.chain = None
            return
        self.tell(hand, (part,), GIVEN_BACK)
        self._drop_chain(seat, hand)

    def _drop_chain(self, seat: Seat[Message], hand: Hand) -> None:
        chain, seat.chain = seat.chain, None
        self._give_back(hand, chain)

    def _give_back(self, hand: Hand, chain: Chain | None) -> None:
        if chain:
            self.tell(hand, [part for _, part in chain], GIVEN_BACK)

    def done(self, seat: Seat[Message], piece: Message, answer: object) -> None:
        if self._is_timed and not self._claim(seat, piece):
            return
        seat.current = None
        hand = piece._hand
        if answer is not None and isinstance(answer, Retry | Bury):
            self._settled(seat, piece, self.outcome(piece.attempt, answer))
        else:
            seat.ack(hand, piece._start, piece._record.offset() + 1)
            if seat.chain is not None:
                self._follow(seat, hand)

    def failed(self, seat: Seat[Message], piece: Message, failure: BaseException) -> None:
        if self._claim(seat, piece):
            self._settled(seat, piece, self.outcome_of_failure(piece, failure), failure)

    def _settled(
        self, seat: Seat[Message], message: Message, outcome: Outcome, failure: BaseException | None = None
    ) -> None:
        seat.note_call(message._hand, message._start)
        self.settle(message, outcome, failure)
        if seat.chain is None:
            return
        if outcome.kind == "released":
            # Who failed is before them until it is done.
            self._drop_chain(seat, message._hand)
        else:
            self._follow(seat, message._hand)

    def _follow(self, seat: Seat[Message], hand: Hand) -> None:
        """The next one of the chain, ahead of all others."""
        chain: Chain = seat.chain
        seat.chain = None
        record, (start, _) = chain.popleft()
        self._todo.appendleft((record, start, hand, chain or None))
        if self.is_closing:
            # Asked last: whoever closed the pile may have emptied it before this came.
            self.empty()

    def over_time(self, seat: Seat[Message], piece: Message) -> bool:
        apart = self._taken_away(seat, piece)
        if apart is None:
            return False
        piece._is_over_time = True
        apart.note_call(piece._hand, piece._start)
        self._drop_chain(apart, piece._hand)
        limit_s = (_now_ms() - apart.began_ms) / 1_000
        tell(events.MessageOverTime(queue=self.manner.queue, message=piece.id, seconds=limit_s))
        failure = TimeoutError(f"the handler was not done after {limit_s:.1f} s")
        self.settle(piece, self.outcome_of_failure(piece, failure))
        return True

    def deadline_ms(self, seat: Seat[Message], piece: Message) -> int:
        return piece._deadline_ms

    def empty(self) -> None:
        while self._todo:
            try:
                record, start, hand, chain = self._todo.popleft()
            except IndexError:
                return
            self.tell(hand, ((start, record.offset() + 1),), GIVEN_BACK)
            self._give_back(hand, chain)
