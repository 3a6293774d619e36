"""What a consumer is handed: records under a claim, to be acked one by one or all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.claims.member import Tenure
from penstock.claims.progress import Lot, Progress
from penstock.errors import Fenced
from penstock.kafka.reader import Received


@dataclass(slots=True, eq=False)
class Work:
    """One partition that we hold, from the grant to its end."""

    tenure: Tenure
    progress: Progress
    next_offset: int

    def settle(self) -> None:
        """Let the heartbeats tell how far it is."""
        self.tenure.position = self.progress.settle()


class _Offsets(Sequence[int]):
    """The offsets of records, looked up only when somebody needs them one by one."""

    def __init__(self, records: list[Received]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index].offset()


class Batch:
    """Records of one partition, handed out together under one claim."""

    __slots__ = ("_is_good", "_lot", "records", "work")

    def __init__(self, records: list[Received], work: Work, is_good: Callable[[Work], bool]) -> None:
        self.records = records
        self.work, self._is_good = work, is_good
        self._lot = Lot(_Offsets(records), work.next_offset, records[-1].offset() + 1)
        work.progress.handed_out(self._lot)
        work.next_offset = self._lot.end

    @property
    def token(self) -> int:
        """The epoch of the claim: a resource that checks it is safe from a former owner."""
        return self.work.tenure.token

    @property
    def is_lost(self) -> bool:
        """Whether the claim passed on: somebody else will get, or has got, these records too."""
        return not self._is_good(self.work)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Message]:
        return (Message(record, self) for record in self.records)

    def ack(self) -> None:
        """All of it is finished. Raises Fenced if the claim passed on."""
        self._check()
        self.pass_over()

    def pass_over(self) -> None:
        """Finished before it is handed out: at most once."""
        self._lot.finished_all()
        self.work.settle()

    def ack_one(self, offset: int) -> None:
        self._check()
        self._lot.finished(offset)
        self.work.settle()

    def _check(self) -> None:
        if self.is_lost:
            slot = self.work.tenure.slot
            raise Fenced(
                f"the claim on {slot.topic}/{slot.partition} passed on while its records were worked on",
                next_step="drop this work; the new owner does it",
            )


class Message:
    """A record that was handed out under a claim."""

    __slots__ = ("_batch", "_record")

    def __init__(self, record: Received, batch: Batch) -> None:
        self._record, self._batch = record, batch

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
    def key(self) -> bytes | None:
        return self._record.key()

    @property
    def value(self) -> bytes | None:
        return self._record.value()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._record.headers() or []

    @property
    def timestamp_ms(self) -> int:
        return self._record.timestamp()[1]

    @property
    def token(self) -> int:
        return self._batch.token

    @property
    def is_lost(self) -> bool:
        return self._batch.is_lost

    def ack(self) -> None:
        """Finished. Again is no change. Raises Fenced if the claim passed on: it may be handed out elsewhere."""
        self._batch.ack_one(self.offset)
