"""What an operator writes into the coordination ledger: pauses of a group, and positions of its slots.

Every one of these first writes the genesis once more. Where it is there already, that changes nothing but the log
clock, which then stands at the present; where it is not, the partition is founded, so that a pause holds there too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from penstock.claims.look import Folds, opened, read_all
from penstock.claims.placement import check_genesis, check_partitions, genesis, partition_of
from penstock.claims.records import Beat, Claimed, ClaimReleased, GroupPaused, Heartbeat, Slot
from penstock.claims.state import Claims
from penstock.errors import Refused, TransientError, UsageError
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin
from penstock.ledger.codec import Record
from penstock.ledger.machine import Fold, Verdict
from penstock.ledger.tail import Tail, Ticket, monotonic_ms
from penstock.settings import Settings
from penstock.values import Duration, TopicPartition

_STEP_MS = 50

To = Literal["earliest", "latest"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetDone:
    slot: Slot
    epoch: int
    position_before: int | None
    position: int


@contextmanager
def operator(settings: Settings) -> Iterator[Operator]:
    """An operator at the end of all partitions.

    Raises Refused when the ledger is not the one that these settings describe.
    """
    with opened(settings) as tail:
        check_partitions(tail.log.name, tail.log.partition_count(), settings.claims)
        yield Operator(tail, read_all(tail, settings), settings)


class Operator:
    def __init__(self, tail: Tail[Claims], folds: Folds, settings: Settings) -> None:
        self.folds = folds
        self._tail, self._settings = tail, settings
        check_genesis(tail, folds, settings.claims)

    def pause(self, group: str, *, lasts: Duration, by: str) -> dict[int, int]:
        """Nobody but `by` is granted anything in the group until then; returns `until_ms` of each partition.

        Raises TransientError when it was not read back everywhere; pausing again does no harm.
        """
        clocks = self._clocks_now()
        untils = {partition: clock_ms + lasts for partition, clock_ms in clocks.items()}
        self._pause_all({partition: GroupPaused(group, by, until_ms) for partition, until_ms in untils.items()})
        return untils

    def resume(self, group: str, *, by: str) -> None:
        """End the group's pause in every partition, whoever paused it."""
        self._pause_all({partition: GroupPaused(group, by, 0) for partition in self._clocks_now()})

    def _pause_all(self, pauses: Mapping[int, Record]) -> None:
        missing = [ticket.partition for ticket in self._ask_all(pauses) if not _accepted(ticket)]
        if missing:
            raise TransientError(f"it does not hold in partitions {missing}", next_step="run the same again")

    def reset(self, slot: Slot, to: To, *, by: str) -> ResetDone:
        """Set the position of a slot that nobody has: claim it, and give it back at that position.

        Raises Refused while somebody else owns it; in a group that `by` has paused, waits for the owner to go.
        """
        position = self._resolved(slot, to)
        partition = partition_of(slot, self._settings.claims.partitions)
        fold = self._wait_until_free(slot, partition, by)
        state = fold.machine.slot(slot)
        before, instance = state.position, uuid.uuid4().hex
        claim = self._ask(partition, Claimed(slot, by, instance, expects=state.epoch))
        if not _accepted(claim) or claim.offset is None:
            raise _refused(slot, _reason(claim), by)
        if producers := tuple(sorted(fold.machine.slot(slot).producers)):
            self._fence(partition, Beat(slot, claim.offset, fenced=producers), by, instance)
        self._show(slot, position)
        released = ClaimReleased(slot, by, instance, claim.offset, position=position, reset=True)
        self._must(self._ask(partition, released), slot)
        return ResetDone(slot=slot, epoch=claim.offset, position_before=before, position=position)

    def _fence(self, partition: int, beat: Beat, by: str, instance: str) -> None:
        """No former owner may commit any more: with a transaction it would move the group's offset once more."""
        for transactional_id in beat.fenced:
            self._tail.log.fence(transactional_id)
        self._must(self._ask(partition, Heartbeat(by, instance, (beat,))), beat.slot)

    def _show(self, slot: Slot, position: int) -> None:
        """The group's offset in Kafka: lag tools read it, and members with transactions go by it."""
        if slot.partition is None:
            return
        with Reader(self._settings.kafka, group=slot.group) as reader:
            reader.commit({TopicPartition(slot.topic, slot.partition): position})

    def _must(self, ticket: Ticket, slot: Slot) -> None:
        if not _accepted(ticket):
            raise TransientError(
                f"{slot} was claimed for the reset, but lost before: {_reason(ticket)}", next_step="run the same again"
            )

    def _resolved(self, slot: Slot, to: To) -> int:
        if slot.partition is None:
            return _resolved_for_lock(slot, to)
        where = TopicPartition(slot.topic, slot.partition)
        with Admin(self._settings.kafka) as admin:
            bounds = admin.bounds([where])[where]
        if to == "earliest":
            return bounds.start
        if to == "latest":
            return bounds.stable_end
        if not bounds.start <= to <= bounds.end:
            raise UsageError(
                f"{where} has the offsets {bounds.start} to {bounds.end}, not {to}",
                next_step="give one of these, earliest or latest",
            )
        return to

    def _wait_until_free(self, slot: Slot, partition: int, by: str) -> Fold[Claims]:
        """Read on until nobody has the slot; but only who paused the group may expect that."""
        fold = self.folds[partition]
        deadline_ms = monotonic_ms() + fold.machine.lease_ms + self._settings.claims.heartbeat
        while True:
            self._clocks_now([partition])
            held = _held(fold, slot)
            if held is None:
                return fold
            pause = fold.machine.pause_of(slot.group, fold.clock_ms)
            if pause is None or pause.by != by or monotonic_ms() > deadline_ms:
                raise _refused(slot, held, by)
            self._read_for(self._settings.claims.heartbeat // 4)

    def _read_for(self, span_ms: int) -> None:
        until_ms = monotonic_ms() + span_ms
        while (left_ms := until_ms - monotonic_ms()) > 0:
            self._tail.step(left_ms)

    def _clocks_now(self, partitions: list[int] | None = None) -> dict[int, int]:
        """The log clock of each partition, brought to the present."""
        wanted = list(self.folds) if partitions is None else partitions
        self._ask_all({partition: genesis(self._settings.claims) for partition in wanted})
        check_genesis(self._tail, wanted, self._settings.claims)
        return {partition: self.folds[partition].clock_ms for partition in wanted}

    def _ask(self, partition: int, record: Record) -> Ticket:
        return self._ask_all({partition: record})[0]

    def _ask_all(self, records: Mapping[int, Record]) -> list[Ticket]:
        """Append, and return when every one was read back."""
        tickets = [self._tail.append(partition, record) for partition, record in records.items()]
        lasts = self._settings.kafka.request_timeout
        deadline_ms = monotonic_ms() + lasts
        while waiting := [ticket for ticket in tickets if ticket.verdict is None]:
            self._tail.step(_STEP_MS)
            for ticket in waiting:
                self._tail.checked_fold(ticket.partition)
                if ticket.failure is not None or monotonic_ms() > deadline_ms:
                    raise TransientError(
                        f"{type(ticket.record).__name__} was not read back from partition {ticket.partition} of "
                        f"{self._tail.log.name}: {ticket.failure or f'nothing came for {lasts}'}",
                        next_step="check the broker (`penstock doctor`), then run the same again",
                    )
        return tickets


def _resolved_for_lock(slot: Slot, to: To) -> int:
    """The position of a lock is that of its job: the log time from which it is due. 0 is long ago."""
    if isinstance(to, str):
        raise UsageError(
            f"{slot} is a lock: there is no {to} in it",
            next_step="give --to 0, so that the job of that name is due at once, or a partition: GROUP/TOPIC/NUMBER",
        )
    return to


def _held(fold: Fold[Claims], slot: Slot) -> str | None:
    """Who has the slot at the log clock."""
    state = fold.machine.slot(slot)
    owner = fold.machine.valid_owner(state, fold.clock_ms)
    if owner is not None:
        return f"owned by {owner[0]}/{owner[1]}"
    return "ranges of it are claimed" if fold.machine.has_live_ranges(state, fold.clock_ms) else None


def _accepted(ticket: Ticket) -> bool:
    return ticket.verdict is not None and ticket.verdict.is_accepted


def _reason(ticket: Ticket) -> str:
    verdict: Verdict | None = ticket.verdict
    return verdict.reason if verdict is not None else ""


def _refused(slot: Slot, why: str, by: str) -> Refused:
    return Refused(
        f"{slot} cannot be reset: {why}",
        next_step=f"`penstock claims pause {slot.group} --for 10m --by {by}` first; everybody gives up what they have",
    )
