"""A message as its handler sees it, and what a handler may say about it.

@orders.handler(concurrency=16)
def charge(order: Order, message: penstock.Message) -> penstock.Outcome:
    if message.attempt > 1: ...
    return penstock.Retry("1m")          # or Bury("why"); returning anything else acks, raising retries with back-off
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol, overload

from penstock.errors import UsageError
from penstock.kafka.reader import Received, every
from penstock.queue.cells import Cell
from penstock.queue.hand import Hand
from penstock.queue.headers import content_type_of, marks_of
from penstock.queue.ids import place_id
from penstock.queue.payload import Decoder
from penstock.queue.ranges import Range
from penstock.queue.records import PROGRESS_BYTES_MAX
from penstock.queue.stretch import Stretch
from penstock.values import DurationLike, duration


class Retry(Exception):
    """Returned or raised by a handler: this attempt failed, try again after this time (without one: the back-off)."""

    def __init__(self, after: DurationLike | None = None) -> None:
        self.after = None if after is None else duration(after)
        super().__init__("as soon as the back-off allows" if after is None else f"after {self.after}")


class Bury(Exception):
    """Returned or raised by a handler: give it up, and keep a copy in the dead letters."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Host(Protocol):
    """What messages ask of whoever handed them out. Any thread may call."""

    decode: Decoder

    def is_good(self, hand: Hand) -> bool: ...

    def note_progress(self, hand: Hand, offset: int, data: bytes) -> None: ...

    def extend(self, message: Message, by_ms: int) -> None: ...


_UNREAD: Any = object()


class Message:
    """One message in hand."""

    __slots__ = ("_deadline_ms", "_hand", "_host", "_is_over_time", "_payload", "_record", "_start")

    def __init__(self, record: Received, start: int, hand: Hand, host: Host) -> None:
        self._record, self._start, self._hand, self._host = record, start, hand, host
        self._payload = _UNREAD
        self._is_over_time = False
        self._deadline_ms = 0

    # What was sent

    @property
    def payload(self) -> Any:
        """As the queue's type reads it. Raises Undecodable."""
        if self._payload is _UNREAD:
            record = self._record
            self._payload = self._host.decode(record.value(), content_type_of(record.headers()))
        return self._payload

    @property
    def value(self) -> bytes | None:
        return self._record.value()

    @property
    def key(self) -> bytes | None:
        return self._record.key()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._record.headers() or []

    @property
    def id(self) -> str:
        """As it was given or made at send; else its place, which no other message has."""
        return marks_of(self._record.headers()).id or place_id(self.topic, self.partition, self.offset)

    @property
    def topic(self) -> str:
        return self._record.topic()

    @property
    def partition(self) -> int:
        return self._record.partition()

    @property
    def offset(self) -> int:
        return self._record.offset()

    @property
    def timestamp_ms(self) -> int:
        return self._record.timestamp()[1]

    # This attempt

    @property
    def attempt(self) -> int:
        """1 for the first one."""
        return self._cell.attempt

    @property
    def token(self) -> int:
        """Grows with every hand-out of this message: what must not be touched by a former holder compares it."""
        return self._hand.epoch

    @property
    def lease_lost(self) -> bool:
        """Whether somebody else has it, or may have it soon: stop, what is done from here on does not count."""
        return self._is_over_time or not self._host.is_good(self._hand)

    @property
    def resume_token(self) -> bytes | None:
        """What an earlier attempt left by `progress`."""
        return self._cell.progress

    def progress(self, data: bytes) -> None:
        """Leave a resume token of up to 1 KB for the next attempt, should there be one."""
        if not isinstance(data, bytes | bytearray):
            raise UsageError(f"{data!r:.80} is no resume token", next_step="give bytes: the next attempt gets the same")
        if len(data) > PROGRESS_BYTES_MAX:
            raise UsageError(
                f"a resume token of {len(data)} bytes is too long",
                next_step=f"give at most {PROGRESS_BYTES_MAX}: where to go on, not what was done",
            )
        self._host.note_progress(self._hand, self.offset, bytes(data))

    def extend(self, by: DurationLike) -> None:
        """Give this attempt so much time from now on, where the queue has a time limit.

        A lease itself needs no extension: as long as the process lives, it is renewed.
        """
        self._host.extend(self, duration(by))

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}/{self.offset}, attempt {self.attempt}>"

    @property
    def _cell(self) -> Cell:
        return self._hand.cell_of(self.offset)

    @property
    def _span(self) -> Range:
        """The offsets that are finished when it is."""
        return self._start, self._record.offset() + 1


class Batch(Sequence[Message]):
    """Messages that a handler gets together. Each is made when somebody looks at it."""

    def __init__(self, parts: Sequence[tuple[Hand, Stretch]], host: Host) -> None:
        self._parts, self._host = parts, host
        self._ends = list(accumulate(len(stretch.records) for _, stretch in parts))
        self._made: dict[int, Message] = {}
        # Who finds it over time looks at it as well, in a thread of its own: both see the same messages.
        self._making = threading.Lock()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Message]:
        with self._making:
            if not self._made:
                # Quicker than one by one.
                all_of_them = (
                    Message(record, start, hand, self._host)
                    for hand, stretch in self._parts
                    for record, (start, _) in stretch.spans()
                )
                self._made = dict(enumerate(all_of_them))
                return iter(list(self._made.values()))
        return map(self._message, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._message(number) for number in range(len(self))[index]]
        return self._message(index if 0 <= index < len(self) else range(len(self))[index])

    def values(self) -> list[bytes | None]:
        """All values as they came."""
        return list(chain.from_iterable(every(stretch.records, "value") for _, stretch in self._parts))

    def attempts(self) -> list[int]:
        """Of each message the number of this attempt: 1 for the first one."""
        return list(chain.from_iterable(hand.attempts(stretch) for hand, stretch in self._parts))

    @property
    def payloads(self) -> list[Any]:
        """As the queue's type reads them. Raises Undecodable if one of them is not."""
        return [message.payload for message in self]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)}>"

    def _message(self, number: int) -> Message:
        made = self._made.get(number)
        return made if made is not None else self._make(number)

    def _make(self, number: int) -> Message:
        with self._making:
            if (made := self._made.get(number)) is None:
                part = bisect_right(self._ends, number)
                hand, stretch = self._parts[part]
                at = number - self._ends[part - 1] if part else number
                made = self._made[number] = Message(stretch.records[at], stretch.span_of(at)[0], hand, self._host)
            return made
