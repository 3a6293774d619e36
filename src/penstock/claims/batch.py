"""What a consumer is handed: records under a claim, to be acked one by one or all together."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.claims.member import Tenure
from penstock.claims.progress import Lot, Progress
from penstock.errors import Fenced, UsageError
from penstock.kafka.reader import Received


@dataclass(slots=True, eq=False)
class Work:
    """One partition that we hold, from the grant to its end. Several threads may finish parts of it."""

    tenure: Tenure
    progress: Progress
    """For this class alone: other threads change it, under the lock."""
    next_offset: int
    is_spoiled: bool = False
    """The claim was in doubt for a while, and what was in hand then was dropped: it has to be begun anew."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handed_out(self, lot: Lot) -> None:
        with self._lock:
            self.progress.handed_out(lot)
            self.next_offset = lot.end

    def finished(self, lot: Lot, offset: int | None = None) -> None:
        """One offset of the lot, or all; from now on the heartbeats tell how far it is."""
        with self._lock:
            if offset is None:
                lot.finished_all()
            else:
                lot.finished(offset)
            self.tenure.position = self.progress.settle()

    def unfinished(self, lot: Lot) -> list[int]:
        with self._lock:
            return lot.left()

    def position(self) -> int:
        """The lowest offset that is not finished; everything below it is."""
        with self._lock:
            return self.progress.position

    def outstanding(self) -> int:
        """How many offsets were handed out and are not finished."""
        with self._lock:
            return self.progress.outstanding_count

    def passed(self, end: int) -> None:
        """Below `end` there is nothing more to hand out."""
        with self._lock:
            self.next_offset = max(self.next_offset, end)
            self.progress.passed(self.next_offset)
            self.tenure.position = self.progress.settle()


class _Offsets(Sequence[int]):
    """The offsets of records, looked up only when somebody needs them one by one."""

    def __init__(self, records: list[Received]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index].offset()


class Batch(ABC):
    """Records of one partition, handed out together."""

    __slots__ = ("records",)

    def __init__(self, records: list[Received]) -> None:
        self.records = records

    @property
    @abstractmethod
    def token(self) -> int:
        """The epoch of the claim: a resource that checks it is safe from a former owner."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the claim passed on: somebody else will get, or has got, these records too."""

    @abstractmethod
    def ack(self) -> None:
        """All of it is finished. Raises Fenced if the claim passed on."""

    @abstractmethod
    def ack_one(self, offset: int) -> None:
        """One of it is finished. Again is no change. Raises Fenced if the claim passed on."""

    def fail(self) -> None:
        """None of what is left of it worked out. See `Message.fail`."""
        raise _cannot_fail()

    def fail_one(self, offset: int) -> None:
        raise _cannot_fail()

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Message]:
        return (Message(record, self) for record in self.records)


class TimedBatch(Batch):
    """One whose messages may become overdue."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether it is for ever none of our business; `is_lost` may pass."""

    @abstractmethod
    def unfinished(self) -> list[int]:
        """The offsets that are not finished yet."""

    @abstractmethod
    def finish(self, offset: int) -> None:
        """Count it as finished, whatever the user does."""


class Holder(Protocol):
    """Who knows whether work is still ours."""

    def is_good(self, work: Work, /) -> bool:
        """Whether it may be handed out now."""
        ...

    def is_held(self, work: Work, /) -> bool: ...


class PartitionBatch(TimedBatch):
    """Handed out under one claim on the whole partition."""

    __slots__ = ("_holder", "_lot", "work")

    def __init__(self, records: list[Received], work: Work, holder: Holder) -> None:
        super().__init__(records)
        self.work, self._holder = work, holder
        self._lot = Lot(_Offsets(records), work.next_offset, records[-1].offset() + 1)
        work.handed_out(self._lot)

    @property
    def token(self) -> int:
        return self.work.tenure.token

    @property
    def is_lost(self) -> bool:
        return not self._holder.is_good(self.work)

    @property
    def is_over(self) -> bool:
        return not self._holder.is_held(self.work)

    @property
    def start(self) -> int:
        return self._lot.start

    @property
    def end(self) -> int:
        """The next offset behind it."""
        return self._lot.end

    def unfinished(self) -> list[int]:
        return self.work.unfinished(self._lot)

    def finish(self, offset: int) -> None:
        self.work.finished(self._lot, offset)

    def ack(self) -> None:
        self._check()
        self.pass_over()

    def pass_over(self) -> None:
        """Finished before it is handed out: at most once."""
        self.work.finished(self._lot)

    def ack_one(self, offset: int) -> None:
        self._check()
        self.finish(offset)

    def _check(self) -> None:
        if self.is_lost:
            slot = self.work.tenure.slot
            raise Fenced(
                f"the claim on {slot.topic}/{slot.partition} passed on while its records were worked on",
                next_step="drop this work; the new owner does it",
            )


class Message:
    """A record that was handed out."""

    __slots__ = ("batch", "record")

    def __init__(self, record: Received, batch: Batch) -> None:
        self.record, self.batch = record, batch

    @property
    def topic(self) -> str:
        return self.record.topic()

    @property
    def partition(self) -> int:
        return self.record.partition()

    @property
    def offset(self) -> int:
        return self.record.offset()

    @property
    def key(self) -> bytes | None:
        return self.record.key()

    @property
    def value(self) -> bytes | None:
        return self.record.value()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.record.headers() or []

    @property
    def timestamp_ms(self) -> int:
        return self.record.timestamp()[1]

    @property
    def token(self) -> int:
        return self.batch.token

    @property
    def is_lost(self) -> bool:
        return self.batch.is_lost

    def ack(self) -> None:
        """Finished. Again is no change. Raises Fenced if the claim passed on: it may be handed out elsewhere."""
        self.batch.ack_one(self.offset)

    def fail(self) -> None:
        """It did not work out: somebody gets it again, and after `delivery_limit` times it is buried. Ranges only.

        Raises Fenced if the claim passed on, UsageError where a single message cannot be given back.
        """
        self.batch.fail_one(self.offset)


def _cannot_fail() -> UsageError:
    return UsageError(
        "a partition that is claimed as a whole cannot give a single message back",
        next_step='use share="ranges"; or leave it unacked, with an ack_timeout',
    )
