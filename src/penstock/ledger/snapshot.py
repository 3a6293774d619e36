"""Snapshots make replay short, and let the log be cut.

A snapshot is "the state after offset N" of one partition, in parts, in the compacted topic `<ledger>.snapshots`. Its
key is (partition, N, writer, part): a late writer can never replace what another wrote. A reader takes the highest
*whole* N whose hash is right and replays from N + 1.

The log is cut only below the second highest whole snapshot, and only where that snapshot equals our own fold. So
whoever was about to read the highest one still finds the log behind it, and a wrong state is never all that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from penstock.crash import crash_point
from penstock.ledger.codec import Junk, Newer, enveloped, opened
from penstock.ledger.log import Entry, Log
from penstock.ledger.machine import Fold, Machine, state_hash
from penstock.observe import events
from penstock.observe.events import tell

PART_BYTES_MAX = 512 * 1024
SNAPSHOT_VERSION = 1
_WRITE_TIMEOUT_MS = 60_000


class PartKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    partition: int
    offset: int
    writer: str
    part: int


class Part(msgspec.Struct, frozen=True, array_like=True):
    parts: int
    hash: str
    data: bytes


class Whole(NamedTuple):
    """A complete snapshot whose hash is right."""

    offset: int
    writer: str
    hash: str
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(PartKey).decode
_decode_part = msgspec.msgpack.Decoder(Part).decode


def split(
    dumped: bytes, *, partition: int, offset: int, writer: str, part_bytes_max: int | None = None
) -> list[tuple[bytes, bytes]]:
    """The keyed records that together are the snapshot."""
    size = part_bytes_max or PART_BYTES_MAX
    pieces = [dumped[at : at + size] for at in range(0, len(dumped), size)] or [b""]
    hashed = state_hash(dumped)
    return [
        (
            _encode(PartKey(partition, offset, writer, part)),
            enveloped(_encode(Part(len(pieces), hashed, piece)), version=SNAPSHOT_VERSION),
        )
        for part, piece in enumerate(pieces)
    ]


class Shelf:
    """All snapshots of one partition that a scan has found."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._parts: dict[PartKey, Part] = {}

    def put(self, entry: Entry) -> None:
        """Take a record of the snapshots topic; junk, newer versions and other partitions are passed over."""
        key = _read_key(entry.key)
        if key is None or key.partition != self._partition:
            return
        part = _read_part(entry.value)
        if part is None:
            self._parts.pop(key, None)
        else:
            self._parts[key] = part

    def keys_below(self, offset: int) -> list[PartKey]:
        return sorted(key for key in self._parts if key.offset < offset)

    def wholes(self) -> list[Whole]:
        """The complete and undamaged ones, lowest offset first."""
        by_snapshot: dict[tuple[int, str], dict[int, Part]] = {}
        for key, part in self._parts.items():
            by_snapshot.setdefault((key.offset, key.writer), {})[key.part] = part
        found = (_assembled(offset, writer, parts) for (offset, writer), parts in sorted(by_snapshot.items()))
        return [whole for whole in found if whole is not None]

    def newest(self) -> Whole | None:
        wholes = self.wholes()
        return wholes[-1] if wholes else None


def cut_point(wholes: Iterable[tuple[int, str]], own_hashes: Mapping[int, str]) -> int | None:
    """The N below whose N + 1 the log may be cut, given (offset, hash) of the whole snapshots that were read back."""
    known = sorted(set(wholes))
    offsets = sorted({offset for offset, _ in known})
    if len(offsets) < 2:
        return None
    second_highest = offsets[-2]
    agreed = [offset for offset, hashed in known if offset <= second_highest and own_hashes.get(offset) == hashed]
    return max(agreed, default=None)


def _assembled(offset: int, writer: str, parts: Mapping[int, Part]) -> Whole | None:
    first = parts.get(0)
    if first is None or set(parts) != set(range(first.parts)):
        return None
    data = b"".join(parts[part].data for part in range(first.parts))
    if any(part.hash != first.hash for part in parts.values()) or state_hash(data) != first.hash:
        return None
    return Whole(offset, writer, first.hash, data)


def _read_key(key: bytes | None) -> PartKey | None:
    try:
        return None if key is None else _decode_key(key)
    except (msgspec.DecodeError, ValueError):
        return None


def _read_part(value: bytes | None) -> Part | None:
    envelope = opened(value, speaks=SNAPSHOT_VERSION)
    if isinstance(envelope, Junk | Newer):
        return None
    try:
        return _decode_part(envelope[1])
    except (msgspec.DecodeError, ValueError):
        return None


class Snapshots:
    """The snapshots topic of one ledger."""

    def __init__(self, log: Log, *, part_bytes_max: int | None = None) -> None:
        self._log, self._part_bytes_max = log, part_bytes_max

    def scan(self, partition: int) -> Shelf:
        """Read the partition from its start to an end asked for now."""
        shelf = Shelf(partition)
        bounds = self._log.bounds([partition])[partition]
        self._log.assign({partition: bounds.start})
        while self._log.position(partition) < bounds.stable_end:
            for entry in self._log.read(1_000, 1_000):
                shelf.put(entry)
        return shelf

    def write(self, partition: int, offset: int, dumped: bytes, *, writer: str) -> int:
        """Append all parts and wait for them; how many there were."""
        records = split(dumped, partition=partition, offset=offset, writer=writer, part_bytes_max=self._part_bytes_max)
        for key, value in records:
            self._log.append(partition, value, key)
            crash_point("snapshot.part_written")
        self._log.flush(_WRITE_TIMEOUT_MS)
        crash_point("snapshot.written")
        return len(records)

    def bury(self, partition: int, keys: Iterable[PartKey]) -> None:
        """Write tombstones, so that compaction takes these parts away."""
        for key in keys:
            self._log.append(partition, None, _encode(key))
        self._log.flush(_WRITE_TIMEOUT_MS)
        crash_point("snapshot.tombstones_written")

    def close(self) -> None:
        self._log.close()


M = TypeVar("M", bound=Machine)


class Keeper:
    """Writes snapshots of one process's folds, and cuts the log behind them."""

    def __init__(self, log: Log, snapshots: Snapshots, *, writer: str, every: int) -> None:
        self._log, self._snapshots, self._writer, self._every = log, snapshots, writer, every
        self._own_hashes: dict[int, dict[int, str]] = {}
        self._last: dict[int, int] = {}

    def forget(self, partition: int, *, offset: int) -> None:
        """The fold was loaded anew, from a snapshot at `offset` (-1 for none)."""
        self._own_hashes.pop(partition, None)
        self._last[partition] = offset

    def is_due(self, partition: int, fold: Fold[M]) -> bool:
        return fold.halt is None and fold.next_offset - 1 - self._last.get(partition, -1) >= self._every

    def keep(self, partition: int, fold: Fold[M]) -> None:
        """Write a snapshot of the fold as it is, then cut what it and its forerunners made dispensable."""
        offset, dumped = fold.next_offset - 1, fold.dump()
        self._own_hashes.setdefault(partition, {})[offset] = state_hash(dumped)
        self._last[partition] = offset
        parts = self._snapshots.write(partition, offset, dumped, writer=self._writer)
        tell(
            events.SnapshotWritten(
                ledger=self._log.name, partition=partition, offset=offset, parts=parts, size_bytes=len(dumped)
            )
        )
        self.cut(partition)

    def cut(self, partition: int) -> None:
        """Cut the log where two whole snapshots allow it. Only what was read back counts."""
        shelf = self._snapshots.scan(partition)
        own = self._own_hashes.get(partition, {})
        at = cut_point(((whole.offset, whole.hash) for whole in shelf.wholes()), own)
        if at is None:
            return
        crash_point("snapshot.cut_decided")
        self._log.cut(partition, at + 1)
        crash_point("snapshot.cut")
        self._own_hashes[partition] = {offset: hashed for offset, hashed in own.items() if offset >= at}
        self._snapshots.bury(partition, shelf.keys_below(at))
        tell(events.LedgerCut(ledger=self._log.name, partition=partition, before=at + 1))
