"""The pile for handlers that get many messages at once.

A batch that fails says nothing about its single messages: they come again in halves, uncharged, until the one that
fails is alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from penstock.errors import Undecodable
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.calling import answers_of
from penstock.queue.halving import Halving
from penstock.queue.hand import ACKED, GIVEN_BACK, Hand, Outcome
from penstock.queue.message import Batch, Bury, Retry
from penstock.queue.pile import Manner, Pile, Seat, _now_ms
from penstock.queue.ranges import Range, without
from penstock.queue.retry import error_text
from penstock.queue.stretch import Stretch

Part = tuple[Hand, Stretch, int]
"""Messages, and how large the batch may be that they go in."""


class BatchPile(Pile[Batch]):
    def __init__(self, manner: Manner, *, batch_max: int, **worker: Any) -> None:
        super().__init__(manner, **worker)
        self._batch_max = batch_max
        self._halving = Halving(batch_max)
        self._lines: deque[deque[Part]] = deque()
        """With an order, a line is what one seat works off after another; without one there is but one line."""

    def __len__(self) -> int:
        with self.lock:
            return sum(map(len, self._lines))

    def give(self, hand: Hand) -> int:
        with self.lock:
            parts = [
                (hand, part, limit)
                for stretch in hand.stretches
                for part, limit in self._halving.parts(hand.partition, stretch)
            ]
            if self.manner.is_ordered or not self._lines:
                self._lines.append(deque(parts))
            else:
                self._lines[0].extend(parts)
        return 1 if self.manner.is_ordered else 1 + hand.count // self._batch_max

    def take(self, seat: Seat[Batch]) -> Batch | None:
        while not self.is_closing:
            with self.lock:
                parts = self._next_parts(seat)
            if not parts:
                return None
            if good := [part for part in parts if self._may_begin(part)]:
                batch = Batch(good, self)
                seat.began_ms, seat.current = _now_ms(), batch
                return batch
        self._drop_line(seat)
        return None

    def _next_parts(self, seat: Seat[Batch]) -> list[tuple[Hand, Stretch]]:
        line: deque[Part] | None = seat.chain
        if not line:
            line = self._lines.popleft() if self._lines else None
            seat.chain = line if self.manner.is_ordered else None
        if not line:
            return []
        found: list[tuple[Hand, Stretch]] = []
        room = limit = line[0][2]
        while line and room > 0 and line[0][2] == limit:
            hand, stretch, _ = line.popleft()
            first, rest = stretch.cut(room)
            if rest is not None:
                line.appendleft((hand, rest, limit))
            found.append((hand, first))
            room -= len(first.records)
        if line and not self.manner.is_ordered:
            self._lines.appendleft(line)
        return found

    def _may_begin(self, part: tuple[Hand, Stretch]) -> bool:
        hand, stretch = part
        if self.is_good(hand):
            return True
        if not hand.is_lost:
            self.tell(hand, stretch.ranges, GIVEN_BACK)
        return False

    def done(self, seat: Seat[Batch], piece: Batch, answer: object) -> None:
        try:
            answers = answers_of(answer, len(piece))
        except Exception as failure:  # noqa: BLE001 - what the handler said makes no sense
            self.failed(seat, piece, failure)
            return
        if not self._claim(seat, piece):
            return
        self._note(seat, piece)
        if not answers:
            for hand, stretch in piece._parts:
                self.tell(hand, stretch.ranges, ACKED)
        elif self._settled(piece, answers):
            self._drop_line(seat)
        self._forget(piece)

    def _settled(self, piece: Batch, answers: dict[int, Retry | Bury]) -> bool:
        """Tell each answer; acks as ranges, so that a few failures cost the others nothing. Whether any comes again."""
        unacked = list(answers)
        comes_again = False
        reached = 0
        for hand, stretch in piece._parts:
            first, reached = reached, reached + len(stretch.records)
            inside = unacked[bisect_left(unacked, first) : bisect_left(unacked, reached)]
            spans = stretch.spans_at([number - first for number in inside])
            for low, high, outcome in self._outcomes(hand, spans, [answers[number] for number in inside]):
                self.tell(hand, spans[low:high], outcome)
                comes_again = comes_again or outcome.kind == "released"
            acked = without(stretch.ranges, spans) if spans else stretch.ranges
            if acked:
                self.tell(hand, acked, ACKED)
        return comes_again

    def _outcomes(
        self, hand: Hand, spans: Sequence[Range], answers: Sequence[Retry | Bury]
    ) -> Iterator[tuple[int, int, Outcome]]:
        """From which message to which one: those that must be equal are made once, all where chance has no part."""
        attempts = hand.attempts_at([end - 1 for _, end in spans])
        low = 0
        for count in _alike(answers, attempts):
            answer, attempt, high = answers[low], attempts[low], low + count
            step = 1 if isinstance(answer, Retry) and answer.after is None else high - low
            for start in range(low, high, step):
                yield start, start + step, self.outcome(attempt, answer)
            low = high

    def failed(self, seat: Seat[Batch], piece: Batch, failure: BaseException) -> None:
        if not self._claim(seat, piece):
            return
        self._note(seat, piece)
        self._drop_line(seat)
        if len(piece) == 1:
            self._forget(piece)
            self.settle(piece[0], self.outcome_of_failure(piece[0], failure), failure)
        elif isinstance(failure, Undecodable):
            self._bury_undecodable(piece)
        else:
            self._halve(piece, failure)

    def _note(self, seat: Seat[Batch], batch: Batch) -> None:
        hand, stretch = batch._parts[0]
        seat.note_call(hand, stretch.start, len(batch))

    def _halve(self, batch: Batch, failure: BaseException) -> None:
        delay_ms = self.manner.rules.backoff_for(failure).delay_ms(1, self.manner.chance())
        if isinstance(failure, Retry) and failure.after is not None:
            delay_ms = int(failure.after)
        error = error_text(failure)
        for hand, stretch in batch._parts:
            with self.lock:
                self._halving.failed(hand.partition, stretch.ranges, len(batch))
            self.tell(hand, stretch.ranges, Outcome("released", delay_ms=delay_ms, error=error))
        if not isinstance(failure, Retry | Bury):
            first = batch[0]
            tell(
                events.MessageFailed(
                    queue=self.manner.queue,
                    message=first.id,
                    attempt=first.attempt,
                    error=error.partition("\n")[0],
                    becomes=f"tried again in halves after {delay_ms} ms, with {len(batch) - 1} others of its batch",
                )
            )

    def _bury_undecodable(self, batch: Batch) -> None:
        """Those that cannot be read; the others come again at once."""
        for message in batch:
            try:
                _ = message.payload
            except Undecodable as failure:
                self.settle(message, self.outcome_of_failure(message, failure), failure)
            else:
                self.tell(message._hand, (message._span,), GIVEN_BACK)

    def over_time(self, seat: Seat[Batch], piece: Batch) -> bool:
        apart = self._taken_away(seat, piece)
        if apart is None:
            return False
        seconds = (_now_ms() - apart.began_ms) / 1_000
        tell(events.MessageOverTime(queue=self.manner.queue, message=piece[0].id, seconds=seconds))
        for message in piece:
            message._is_over_time = True
        self.failed(apart, piece, TimeoutError(f"the handler was not done after {seconds:.1f} s"))
        return True

    def deadline_ms(self, seat: Seat[Batch], piece: Batch) -> int:
        limit_ms = seat.began_ms + (self.manner.time_limit_ms or 0)
        # A list: the handler makes more of them meanwhile.
        return max([limit_ms, *(message._deadline_ms for message in list(piece._made.values()))])

    def _forget(self, batch: Batch) -> None:
        with self.lock:
            for hand, stretch in batch._parts:
                self._halving.ended(hand.partition, stretch.ranges)

    def _drop_line(self, seat: Seat[Batch]) -> None:
        """With an order: what comes behind a failure may be of the same key."""
        line, seat.chain = seat.chain, None
        for hand, stretch, _ in line or ():
            self.tell(hand, stretch.ranges, GIVEN_BACK)

    def empty(self) -> None:
        with self.lock:
            lines, self._lines = self._lines, deque()
        for line in lines:
            for hand, stretch, _ in line:
                self.tell(hand, stretch.ranges, GIVEN_BACK)


def _alike(answers: Sequence[Retry | Bury], attempts: Sequence[int]) -> list[int]:
    """How many in a row have the same answer and attempt, from the first on. Mostly all have."""
    if answers and answers.count(answers[0]) == len(answers) and attempts.count(attempts[0]) == len(attempts):
        return [len(answers)]
    kinds = zip(map(id, answers), attempts, strict=True)
    return [len(list(alike)) for _, alike in groupby(kinds)]
