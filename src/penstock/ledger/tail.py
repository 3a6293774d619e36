"""A reader at the tail of a ledger: keeps the folds, matches what we appended with what we read back.

One thread owns a tail. It drives it by `step`, again and again; the simulator does the same on a log in memory.

Every record that a tail appends carries a *ticket* as its Kafka key: the tail's instance and a number. The fold never
looks at keys; they only tell a writer which record is its own. A ticket has a verdict when its record was read back.
Until then nobody knows anything: an acknowledged append means nothing, a failed one may be in the log all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec

from penstock.crash import crash_point
from penstock.errors import GenesisMismatch, Halted, OffsetGone
from penstock.ledger.clock import JumpWatch
from penstock.ledger.codec import Record, encode
from penstock.ledger.log import Entry, Log, Transactions
from penstock.ledger.machine import Fold, Genesis, Halt, Judged, Machine, Verdict, ignored
from penstock.ledger.snapshot import Keeper, Snapshots, Whole
from penstock.observe import events
from penstock.observe.events import tell

M = TypeVar("M", bound=Machine)

READ_COUNT_MAX = 10_000


def monotonic_ms() -> int:
    """This process's own clock, for whoever drives a tail outside a simulation."""
    return time.monotonic_ns() // 1_000_000


NEVER_READ_BACK = ignored("the log was cut before it was read back")


class Ticket(msgspec.Struct, eq=False, gc=False):
    """A question to the log, and its answer once it was read back."""

    partition: int
    record: Record
    wire: bytes
    """The record as it is in the log, should it get there."""
    sent_ms: int
    """On our monotonic clock, from before it was handed over."""
    verdict: Verdict | None = None
    offset: int | None = None
    failure: str | None = None
    """Why the client gave the append up. The record may be in the log all the same: ask again, and expect both."""


class ReadBack(NamedTuple):
    """One of our own records, seen in the log. Without a ticket nobody waits for it any more."""

    partition: int
    offset: int
    record: Record | None
    verdict: Verdict
    ticket: Ticket | None


Witness = Callable[[Entry, Judged], None]


@dataclass(slots=True)
class _Followed(Generic[M]):
    """What a tail knows of one partition."""

    fold: Fold[M]
    watch: JumpWatch
    asked_end: int | None = None
    read_back_ms: int | None = None
    calm_since_ms: int | None = None
    pending: dict[bytes, Ticket] = field(default_factory=dict)


class Tail(Generic[M]):
    """Follows some partitions of a ledger.

    `fresh_ms`: how recently we must have read a record of our own back to count as being at the end.
    """

    def __init__(
        self,
        log: Log,
        snapshots: Snapshots,
        *,
        machine: Callable[[], M],
        instance: str,
        monotonic_ms: Callable[[], int],
        fresh_ms: int,
        snapshot_every: int,
        witness: Witness | None = None,
    ) -> None:
        self.log = log
        self.instance = instance
        self._snapshots, self._machine, self._now_ms, self._fresh_ms = snapshots, machine, monotonic_ms, fresh_ms
        self._keeper = Keeper(log, snapshots, writer=instance, every=snapshot_every)
        self.witness = witness
        self._followed: dict[int, _Followed[M]] = {}
        self._key_prefix = instance.encode() + b"#"
        self._appended_count = 0
        log.on_failure = self._on_failure

    # What a tail follows

    def follow(self, partitions: Iterable[int]) -> None:
        """Restore these partitions too, and read on from there."""
        for partition in partitions:
            if partition not in self._followed:
                self._followed[partition] = self._restored(partition)
        self._assign()
        self.ask_ends()

    def leave(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._followed.pop(partition, None)
        self._assign()

    def fold(self, partition: int) -> Fold[M]:
        return self._followed[partition].fold

    def checked_fold(self, partition: int) -> Fold[M]:
        """The fold, if it may still be acted on.

        Raises Halted if the partition is at a record that must not be passed.
        """
        fold = self._followed[partition].fold
        if fold.halt is not None:
            raise _halted(self.log.name, partition, fold.halt)
        return fold

    def check_genesis(self, partition: int, ours: Genesis, *, mend: str) -> None:
        """Raises GenesisMismatch if the ledger was founded for other values than ours."""
        theirs = self.checked_fold(partition).genesis
        if theirs is not None and theirs != ours:
            raise GenesisMismatch(
                f"ledger {self.log.name} was founded with {theirs}, this process has {ours}", next_step=mend
            )

    # Asking

    def append(self, partition: int, record: Record) -> Ticket:
        """Hand a record over; its ticket tells when it was read back, and what it was worth."""
        ticket, key = self._ticket(partition, record)
        self.log.append(partition, ticket.wire, key)
        crash_point("ledger.appended")
        return ticket

    def append_in(self, transactions: Transactions, partition: int, record: Record) -> Ticket:
        """The same inside an open transaction: it is read back only if that commits."""
        ticket, key = self._ticket(partition, record)
        transactions.send(self.log.name, partition, ticket.wire, key=key)
        crash_point("ledger.appended_in_transaction")
        return ticket

    def _ticket(self, partition: int, record: Record) -> tuple[Ticket, bytes]:
        self._appended_count += 1
        key = self._key_prefix + b"%d" % self._appended_count
        ticket = self._followed[partition].pending[key] = Ticket(partition, record, encode(record), self._now_ms())
        return ticket, key

    def forget(self, ticket: Ticket) -> None:
        """Nobody waits for it any more; if it is read back after all, it comes without a ticket."""
        followed = self._followed.get(ticket.partition)
        if followed is not None:
            followed.pending = {key: other for key, other in followed.pending.items() if other is not ticket}

    def ask_ends(self) -> None:
        """Ask the broker how far there is to read."""
        running = self._running()
        for partition, bounds in self.log.bounds(running).items():
            self._followed[partition].asked_end = bounds.stable_end

    # Reading

    def step(self, timeout_ms: int) -> list[ReadBack]:
        """Read and judge what is there; return our own records among it, in the order of the log."""
        read_back: list[ReadBack] = []
        try:
            entries = self.log.read(READ_COUNT_MAX, timeout_ms)
        except OffsetGone as gone:
            return self._rebuild(gone.partition)
        for entry in entries:
            self._judge(entry, read_back)
        self._look_around({entry.partition for entry in entries})
        return read_back

    def at_end(self, partition: int) -> bool:
        """Whether the state is the present one: we reached the end that we asked for, and lately read our own back."""
        followed = self._followed[partition]
        return (
            self.is_caught_up(partition)
            and followed.read_back_ms is not None
            and self._now_ms() - followed.read_back_ms < self._fresh_ms
        )

    def is_caught_up(self, partition: int) -> bool:
        """Whether we reached the end that we last asked for. Records may still hide behind an open transaction."""
        followed = self._followed[partition]
        return (
            followed.fold.halt is None
            and followed.asked_end is not None
            and self.log.position(partition) >= followed.asked_end
        )

    def calm_ms(self, partition: int) -> int:
        """For how long we have been at the end without the log clock jumping.

        What belonged to others may be asked for only after a lease of calm: after an outage, or a step of a broker's
        clock, everything looks expired at once.
        """
        since = self._followed[partition].calm_since_ms
        return 0 if since is None or not self.at_end(partition) else self._now_ms() - since

    # Keeping

    def keep_snapshots(self) -> None:
        """Write the snapshots that are due, and cut the log behind them."""
        for partition in self._running():
            fold = self._followed[partition].fold
            if self._keeper.is_due(partition, fold):
                self._keeper.keep(partition, fold)

    def close(self) -> None:
        self.log.close()
        self._snapshots.close()

    # Inside

    def _judge(self, entry: Entry, read_back: list[ReadBack]) -> None:
        followed = self._followed[entry.partition]
        fold = followed.fold
        is_own = entry.key is not None and entry.key.startswith(self._key_prefix)
        ticket = followed.pending.get(entry.key or b"") if is_own else None
        judged = fold.feed(entry.offset, entry.time_ms, entry.value, _known(ticket, entry))
        if fold.halt is not None:
            return
        if is_own:
            read_back.append(self._own(entry, judged, followed))
        if judged.record is None:
            tell(
                events.RecordIgnored(
                    ledger=self.log.name, partition=entry.partition, offset=entry.offset, reason=judged.verdict.reason
                )
            )
        if self.witness is not None:
            self.witness(entry, judged)

    def _own(self, entry: Entry, judged: Judged, followed: _Followed[M]) -> ReadBack:
        followed.read_back_ms = self._now_ms()
        ticket = followed.pending.pop(entry.key or b"", None)
        if ticket is not None:
            ticket.verdict, ticket.offset = judged.verdict, entry.offset
        return ReadBack(entry.partition, entry.offset, judged.record, judged.verdict, ticket)

    def _look_around(self, changed: set[int]) -> None:
        now_ms = self._now_ms()
        halted = False
        for partition, followed in self._followed.items():
            if partition in changed:
                halted |= self._has_just_halted(partition, followed)
                self._watch_clock(partition, followed, now_ms)
            if not self.at_end(partition):
                followed.calm_since_ms = None
            elif followed.calm_since_ms is None:
                followed.calm_since_ms = now_ms
        if halted:
            self._assign()

    def _watch_clock(self, partition: int, followed: _Followed[M], now_ms: int) -> None:
        if not self.is_caught_up(partition) or followed.read_back_ms is None:
            # The last record may be of last week: what time it is in the log we know since we read one of our own.
            followed.watch.forget()
            return
        ahead_ms = followed.watch.observe(log_clock_ms=followed.fold.clock_ms, monotonic_ms=now_ms)
        if ahead_ms:
            followed.calm_since_ms = now_ms
            tell(events.LogClockJumped(ledger=self.log.name, partition=partition, ahead_ms=ahead_ms))

    def _has_just_halted(self, partition: int, followed: _Followed[M]) -> bool:
        halt = followed.fold.halt
        if halt is None:
            return False
        tell(events.PartitionHalted(ledger=self.log.name, partition=partition, offset=halt.offset, reason=halt.reason))
        return True

    def _running(self) -> list[int]:
        return [partition for partition, followed in self._followed.items() if followed.fold.halt is None]

    def _assign(self) -> None:
        self.log.assign({partition: self._followed[partition].fold.next_offset for partition in self._running()})

    def _restored(self, partition: int) -> _Followed[M]:
        fold = Fold(self._machine())
        whole = self._base(partition, fold)
        if whole is not None:
            fold.load(whole.data, offset=whole.offset)
        self._keeper.forget(partition, offset=fold.next_offset - 1)
        return _Followed(fold, JumpWatch(tolerance_ms=self._fresh_ms))

    def _base(self, partition: int, fold: Fold[M]) -> Whole | None:
        """The snapshot to start from. A log that is cut beyond every snapshot is never an empty state."""
        whole = self._snapshots.scan(partition).newest()
        bounds = self.log.bounds([partition])[partition]
        if bounds.start > _next_offset(whole):
            # It was cut since we looked. Whoever cut had read a newer snapshot back before: it is there now.
            whole = self._snapshots.scan(partition).newest()
        if bounds.start > _next_offset(whole):
            fold.halt = Halt(
                bounds.start,
                f"the log starts there, but the newest whole snapshot ends at {_next_offset(whole)}",
                f"restore the topic {self.log.name}.snapshots, or found the ledger again under another name",
            )
            return None
        if bounds.end < _next_offset(whole):
            fold.halt = Halt(
                bounds.end,
                f"the log ends there, a snapshot tells of offset {_next_offset(whole) - 1}: re-created or cut short",
                f"restore the topic {self.log.name}, or delete {self.log.name}.snapshots if it is meant to be new",
            )
            return None
        return whole

    def _rebuild(self, partition: int) -> list[ReadBack]:
        """Our position was cut away: start from the snapshots again. What was not read back counts as refused."""
        before = self._followed[partition]
        followed = self._followed[partition] = self._restored(partition)
        crash_point("ledger.rebuilt")
        self._assign()
        self.ask_ends()
        self._tell_rebuilt(partition, followed)
        return [_refused(ticket) for ticket in before.pending.values()]

    def _tell_rebuilt(self, partition: int, followed: _Followed[M]) -> None:
        tell(
            events.LedgerRebuilt(
                ledger=self.log.name,
                partition=partition,
                snapshot_offset=followed.fold.next_offset - 1,
                reason="the log was cut beyond our position",
            )
        )
        self._has_just_halted(partition, followed)

    def _on_failure(self, partition: int, key: bytes | None, reason: str) -> None:
        followed = self._followed.get(partition)
        ticket = followed.pending.get(key or b"") if followed else None
        if ticket is not None:
            ticket.failure = reason


def _known(ticket: Ticket | None, entry: Entry) -> Record | None:
    """The record in this entry, if that can be told from its bytes alone: they are the ones that we sent."""
    if ticket is None or not ticket.record.comes_back_equal or ticket.wire != entry.value:
        return None
    return ticket.record


def _next_offset(whole: Whole | None) -> int:
    return 0 if whole is None else whole.offset + 1


def _refused(ticket: Ticket) -> ReadBack:
    ticket.verdict = NEVER_READ_BACK
    return ReadBack(ticket.partition, -1, ticket.record, NEVER_READ_BACK, ticket)


def _halted(ledger: str, partition: int, halt: Halt) -> Halted:
    return Halted(ledger=ledger, partition=partition, offset=halt.offset, reason=halt.reason, next_step=halt.next_step)


def read_to_end(tail: Tail[M], partitions: Iterable[int], *, timeout_ms: int = 1_000) -> None:
    """Step until every partition that is not halted has reached the end that was last asked for."""
    waiting = set(partitions)
    while waiting:
        tail.step(timeout_ms)
        waiting = {p for p in waiting if tail.fold(p).halt is None and not tail.is_caught_up(p)}
