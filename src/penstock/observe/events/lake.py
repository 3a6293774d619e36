"""What pipelines of the lake tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.observe.events.telling import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLanded(Event):
    """A micro-batch is in its table: so many rows, in this version."""

    level: ClassVar[str] = "debug"
    pipeline: str
    table: str
    batch: int
    version: int
    rows: int
    bad: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeBadMessages(Event):
    """Messages that are no rows: in the dead letters of this version, or left out (version -1)."""

    level: ClassVar[str] = "warning"
    pipeline: str
    count: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTableMade(Event):
    pipeline: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeBatchesResized(Event):
    """A stream was begun again with batches of another size, because the rows are not as large as was thought."""

    level: ClassVar[str] = "debug"
    pipeline: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStreamRestarted(Event):
    """A stream is begun again from what its table has, after something that passes."""

    level: ClassVar[str] = "warning"
    pipeline: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOffsetsNotShown(Event):
    """The offsets of a group could not be committed for lag tools; the table has them all the same."""

    level: ClassVar[str] = "warning"
    group: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineWaits(Event):
    """A pipeline does not run yet: its locks belong to another process, or are just being taken."""

    pipeline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineStarted(Event):
    """A pipeline holds its locks, and its stream runs."""

    pipeline: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLockLost(Event):
    """A pipeline was stopped because it can no longer be sure of a lock; it waits to get it back."""

    level: ClassVar[str] = "warning"
    pipeline: str
    lock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineEnded(Event):
    """A pipeline was stopped, or has landed all that it was to land."""

    pipeline: str
    version: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePipelineFailed(Event):
    """A pipeline ended by itself, and does not come back."""

    level: ClassVar[str] = "error"
    pipeline: str
    error: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeProgressed(Event):
    """How far a pipeline is, every few seconds; rows and bad messages count from its start."""

    level: ClassVar[str] = "debug"
    pipeline: str
    state: str
    version: int
    rows: int
    bad: int
    rows_per_second: float
    lag_messages: int
    lag_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMaintained(Event):
    """Small files became large ones, and files that nobody needs any more were removed."""

    pipeline: str
    table: str
    files_compacted: int
    files_written: int
    files_removed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMaintenanceFailed(Event):
    """The table is as it was; it is tried again in the next period."""

    level: ClassVar[str] = "warning"
    pipeline: str
    table: str
    reason: str
