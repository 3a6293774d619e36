"""The port to a log: what a ledger needs of a Kafka topic, and nothing more.

Two things implement it, and pass one contract suite: `kafka_log.KafkaLog` on a broker, and `memory_log.MemoryLog` for
the simulator and unit tests. A log object belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.values import Bounds


class Entry(NamedTuple):
    """One visible record of a log."""

    partition: int
    offset: int
    time_ms: int
    """The broker's append time."""
    key: bytes | None
    value: bytes | None


FailureListener = Callable[[int, bytes | None, str], None]
"""Told partition, key and reason of an append that was given up. The record may be in the log all the same."""


Announce = Callable[[str], None]
"""Makes a fresh transactional id known to everyone who may have to fence it; returns when that was read back."""


class Transactions(Protocol):
    """Records that become visible together or not at all; see `penstock.kafka.transactions` for the one rule."""

    @property
    def id(self) -> str:
        """The present transactional id; a fresh one after every doubt."""

    def open(self) -> str: ...

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes | None, *, key: bytes | None = None) -> None: ...

    def commit(self) -> None:
        """Raises Fenced if somebody initialised the id, OutcomeUnknown if nobody can tell: then `settle_and_renew`."""

    def abort(self) -> None: ...

    def settle_and_renew(self) -> str:
        """What the old id left is now wholly in the log, or never will be; go on under the fresh id."""

    def close(self) -> None: ...


class Log(Protocol):
    """One topic, read `read_committed` from explicit positions, appended with acks from all replicas."""

    name: str
    on_failure: FailureListener | None

    def partition_count(self) -> int: ...

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on, and no others."""

    def read(self, count_max: int, timeout_ms: int) -> list[Entry]:
        """What has become visible, in offset order within each partition; empty after `timeout_ms`.

        Raises OffsetGone when a position has been cut away; `assign` again.
        """

    def position(self, partition: int) -> int:
        """The next offset to be read; moves over invisible records (aborted ones, transaction markers) too."""

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        """Asked of the broker now."""

    def append(self, partition: int, value: bytes | None, key: bytes | None = None) -> None:
        """Hand a record over. Returning means nothing: only reading it back tells."""

    def flush(self, timeout_ms: int) -> None:
        """Wait until all that was appended is acknowledged or given up.

        Raises TransientError when that takes longer.
        """

    def cut(self, partition: int, before: int) -> None:
        """Delete everything below offset `before`. Lower than the log start is no change."""

    def transactions(self, *, group: str, instance: str, announce: Announce) -> Transactions:
        """For this log and any other topic of the same broker; not open yet."""

    def fence(self, transactional_id: str) -> None:
        """Initialise somebody's id: what it had open is aborted, and it is fenced."""

    def close(self) -> None: ...
