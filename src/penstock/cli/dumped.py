"""A ledger as lines of JSON: what `dump` writes and `replay` reads, whatever the machine."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.cli.output import say
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.ledger.history import History
    from penstock.ledger.machine import Fold, Judged, Machine

    M = TypeVar("M", bound=Machine)


class Line(Protocol):
    @property
    def offset(self) -> int: ...


L = TypeVar("L", bound=Line)


class Snapshot(NamedTuple):
    """The state after an offset, in place of what was cut away."""

    offset: int
    data: bytes


class _Outside(msgspec.Struct):
    """What a line may say besides its record."""

    partition: int | None = None
    offset: int | None = None
    snapshot: str | None = None


_outside_of = msgspec.json.Decoder(_Outside).decode


def written(
    history: History[Any], partition: int, line_of: Callable[[int, int, bytes | None, Judged], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """One partition; where it was cut, the snapshot that stands for what is gone comes first."""
    if history.base is not None:
        say(f"partition {partition}: begins with a snapshot at offset {history.base.offset}; what was before is cut")
        state, time_ms = base64.b64encode(history.base.data).decode(), history.fold.clock_ms
        yield {"partition": partition, "offset": history.base.offset, "time_ms": time_ms, "snapshot": state}
    elif history.start > 0:
        say(f"partition {partition}: cut before offset {history.start}, and there is no snapshot of what is gone")
    for entry, judged in history:
        yield {"partition": partition, **line_of(entry.offset, entry.time_ms, entry.value, judged)}


def read(
    file: BinaryIO, partition: int | None, read_line: Callable[[bytes, int], L], *, of: str
) -> Iterator[L | Snapshot]:
    """The lines of one partition; `of` says of what. Raises UsageError for what is no dump of that, or not in order."""
    last = -1
    first: int | None = None
    for number, text in enumerate(file, start=1):
        if not text.strip():
            continue
        outside = _read_outside(text)
        if partition is not None and outside.partition not in (None, partition):
            continue
        first = outside.partition if first is None else first
        if outside.partition not in (None, first):
            raise UsageError(
                f"line {number} is of another partition: {outside.partition}",
                next_step="choose one of them with --partition",
            )
        line = _snapshot(outside, number, of) or read_line(text, number)
        if line.offset <= last:
            raise UsageError(
                f"line {number}: offset {line.offset} comes after {last}", next_step="sort the dump by offset"
            )
        last = line.offset
        yield line


def _read_outside(text: bytes) -> _Outside:
    try:
        return _outside_of(text)
    except msgspec.DecodeError:
        return _Outside()  # whoever reads the line itself says what is wrong with it


def _snapshot(outside: _Outside, number: int, of: str) -> Snapshot | None:
    if outside.snapshot is None or outside.offset is None:
        return None
    try:
        return Snapshot(outside.offset, base64.b64decode(outside.snapshot, validate=True))
    except binascii.Error as problem:
        raise _no_snapshot(f"line {number}", of) from problem


def load(fold: Fold[M], snapshot: Snapshot, *, of: str) -> None:
    """Raises UsageError if it is none of that machine."""
    try:
        fold.load(snapshot.data, offset=snapshot.offset)
    except (msgspec.DecodeError, ValueError, TypeError, LookupError) as problem:
        raise _no_snapshot(f"offset {snapshot.offset}", of) from problem


def _no_snapshot(where: str, of: str) -> UsageError:
    return UsageError(f"{where} holds no snapshot of {of}", next_step="dump it again")


def through_a_snapshot(fold: Fold[M], machine: M) -> Fold[M]:
    """The same state, by way of a snapshot of it."""
    from penstock.ledger.machine import Fold

    restored = Fold(machine)
    restored.load(fold.dump(), offset=fold.next_offset - 1)
    restored.halt = fold.halt
    return restored
