"""State is a fold over a log: the rules that hold for every ledger, in one place.

A *machine* knows one capability's records. The *fold* around it knows what all ledgers share: the log clock, junk,
the genesis, the protocol version, and where to stop. Both are pure: whoever feeds the same entries has the same state.

Order of judgement for each entry:
  1. a newer protocol version ends the fold before the entry: nothing moves, not even the clock;
  2. the append time moves the log clock, whatever the entry is worth (a refused question is a tick);
  3. junk is ignored and counted;
  4. `VersionRaised` and `ClockReset` are always accepted;
  5. before the genesis all else is ignored; a second genesis changes nothing;
  6. the machine judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import xxhash

from penstock.errors import InvariantBroken
from penstock.ledger.codec import FIRST_VERSION, Codec, Junk, Newer, Record


class Kind(Enum):
    ACCEPTED = "accepted"
    PARTIAL = "partial"
    IGNORED = "ignored"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a record did to the state."""

    kind: Kind
    reason: str = ""
    parts: tuple[Verdict, ...] = ()
    """One for each part of a record that has several."""

    @property
    def is_accepted(self) -> bool:
        return self.kind is Kind.ACCEPTED


ACCEPTED = Verdict(Kind.ACCEPTED)
UNCHANGED = Verdict(Kind.UNCHANGED)


def ignored(reason: str) -> Verdict:
    return Verdict(Kind.IGNORED, reason)


def together(parts: Iterable[Verdict]) -> Verdict:
    """The verdict on a record whose parts are judged one by one."""
    judged = tuple(parts)
    if judged.count(ACCEPTED) == len(judged):
        return _all_accepted(len(judged))
    kinds = {verdict.kind for verdict in judged}
    if len(kinds) == 1:
        return Verdict(judged[0].kind, judged[0].reason, judged)
    return Verdict(Kind.PARTIAL, "", judged)


@cache
def _all_accepted(count: int) -> Verdict:
    """Nearly every record of several parts: made once for each number of them."""
    return Verdict(Kind.ACCEPTED, "", (ACCEPTED,) * count) if count else ignored("it has no parts")


BEFORE_GENESIS = ignored("before the genesis")
SECOND_GENESIS = ignored("another genesis came first")
HALTED = ignored("the fold has ended before this record")


class Genesis(Record, frozen=True):
    """Base of every machine's first record: it fixes what must not differ between members."""


class VersionRaised(Record, frozen=True):
    """From here on, records of version `version` may follow. Written by an operator; it never goes down."""

    version: int
    by: str


class ClockReset(Record, frozen=True):
    """Sets the log clock, and every renewal, to this record's own append time. Written by an operator."""

    by: str


LEDGER_RECORDS: tuple[type[Record], ...] = (VersionRaised, ClockReset)


class Machine(Protocol):
    """One capability's rules. Holds the state of one partition; changes it only in `apply` and `reset_clock`."""

    record_types: ClassVar[tuple[type[Record], ...]]
    """Its own facts, the genesis among them."""

    speaks: ClassVar[int]
    """The highest protocol version that this code understands."""

    def apply(self, record: Any, offset: int, clock_ms: int) -> Verdict:
        """Judge one record at the log clock `clock_ms`, and change the state if it is accepted. Total: never raises."""

    def reset_clock(self, clock_ms: int) -> None:
        """Every renewal that the state remembers happened at `clock_ms`."""

    def dump(self) -> Any:
        """The whole state as plain values, in one canonical order: equal states give equal dumps."""

    def load(self, dumped: Any) -> None:
        """Become the state that `dump` gave."""


M = TypeVar("M", bound=Machine)


class Halt(NamedTuple):
    """Where and why a fold ended."""

    offset: int
    reason: str
    next_step: str


class Judged(NamedTuple):
    record: Record | None
    verdict: Verdict


class FoldState(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot holds: everything that the fold remembers, except where it is."""

    clock_ms: int
    version: int
    genesis: msgspec.Raw
    junk_count: int
    machine: msgspec.Raw


_DECODER = msgspec.msgpack.Decoder(FoldState)
_encode = msgspec.msgpack.Encoder().encode


class Fold(Generic[M]):
    """Folds one partition of a ledger into the state of one machine."""

    def __init__(self, machine: M) -> None:
        self.machine = machine
        self.clock_ms = 0
        self.version = 1
        self.genesis: Genesis | None = None
        self.junk_count = 0
        self.next_offset = 0
        """One above the last entry that was judged."""
        self.halt: Halt | None = None
        self._codec = Codec((*LEDGER_RECORDS, *machine.record_types), speaks=machine.speaks)

    def feed(self, offset: int, time_ms: int, value: bytes | None, known: Record | None = None) -> Judged:
        """Judge one entry. Never raises on what is in the log; offsets must grow.

        `known` is the record of which `encode` made these bytes, if whoever feeds them has it at hand.
        """
        if self.halt is not None:
            return Judged(None, HALTED)
        if offset < self.next_offset:
            raise InvariantBroken(f"offset {offset} was fed after offset {self.next_offset - 1}")
        decoded = self._codec.decode(value) if known is None else (FIRST_VERSION, known)
        if isinstance(decoded, Newer):
            return self._halted(offset, decoded.version)
        if isinstance(decoded, Junk):
            self._read(offset, time_ms)
            self.junk_count += 1
            return Judged(None, ignored(decoded.reason))
        version, record = decoded
        if isinstance(record, VersionRaised) and record.version > self.machine.speaks:
            return self._halted(offset, record.version)
        self._read(offset, time_ms)
        return Judged(record, self._judge(version, record, offset, time_ms))

    def _read(self, offset: int, time_ms: int) -> None:
        self.next_offset = offset + 1
        if time_ms > self.clock_ms:
            self.clock_ms = time_ms

    def _judge(self, version: int, record: Record, offset: int, time_ms: int) -> Verdict:
        if isinstance(record, LEDGER_RECORDS):
            return self._apply_own(record, time_ms)
        if version > self.version:
            return ignored(f"version {version} is not switched on in this ledger")
        if isinstance(record, Genesis):
            return self._found(record, offset)
        if self.genesis is None:
            return BEFORE_GENESIS
        return self.machine.apply(record, offset, self.clock_ms)

    def _apply_own(self, record: Record, time_ms: int) -> Verdict:
        if isinstance(record, VersionRaised):
            if record.version <= self.version:
                return UNCHANGED
            self.version = record.version
            return ACCEPTED
        self.clock_ms = time_ms
        self.machine.reset_clock(time_ms)
        return ACCEPTED

    def found(self, genesis: Genesis) -> None:
        """Begin as if this genesis stood before the log: for tools that replay a part of one."""
        self._found(genesis, -1)

    def _found(self, genesis: Genesis, offset: int) -> Verdict:
        if self.genesis is not None:
            return UNCHANGED if genesis == self.genesis else SECOND_GENESIS
        verdict = self.machine.apply(genesis, offset, self.clock_ms)
        if verdict.is_accepted:
            self.genesis = genesis
        return verdict

    def _halted(self, offset: int, version: int) -> Judged:
        self.halt = Halt(
            offset,
            f"protocol version {version} begins there, this Penstock speaks {self.machine.speaks}",
            "upgrade Penstock in this process",
        )
        return Judged(None, HALTED)

    def dump(self) -> bytes:
        """The state as bytes: equal states give equal bytes, in every process."""
        return _encode(
            FoldState(
                clock_ms=self.clock_ms,
                version=self.version,
                genesis=msgspec.Raw(_encode(self.genesis)),
                junk_count=self.junk_count,
                machine=msgspec.Raw(_encode(self.machine.dump())),
            )
        )

    def load(self, dumped: bytes, *, offset: int) -> None:
        """Become the state after `offset`.

        Raises msgspec.DecodeError if the bytes are no state of this machine.
        """
        state = _DECODER.decode(dumped)
        genesis_types = tuple(kind for kind in self.machine.record_types if issubclass(kind, Genesis))
        self.genesis = None if bytes(state.genesis) == b"\xc0" else _genesis(state.genesis, genesis_types)
        self.clock_ms, self.version, self.junk_count = state.clock_ms, state.version, state.junk_count
        self.machine.load(msgspec.msgpack.decode(state.machine))
        self.next_offset = offset + 1

    def hash(self) -> str:
        """Same prefix, same hash: live or replayed, with or without snapshot, in whatever process."""
        return state_hash(self.dump())


def _genesis(raw: msgspec.Raw, kinds: Sequence[type[Record]]) -> Genesis:
    decoded = msgspec.msgpack.decode(raw, type=kinds[0])
    if not isinstance(decoded, Genesis):
        raise InvariantBroken(f"{kinds[0].__name__} is no genesis")
    return decoded


def state_hash(dumped: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(dumped)
