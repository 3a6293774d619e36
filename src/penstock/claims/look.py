"""Looking at the coordination ledger, and nothing else: no record is written, nothing is claimed.

*Now*: the log clock of a quiet partition stands still, and with it every expiry. So slots are shown at the time of
this machine, or at the log clock where that is further. A machine whose clock is wrong shows wrong ages; what the log
decides does not depend on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.claims.intervals import Owner
from penstock.claims.placement import coordination_topic, partition_of
from penstock.claims.records import Slot
from penstock.claims.state import Claims, SlotState
from penstock.errors import NotFound
from penstock.ledger import history
from penstock.ledger.history import History, Patience
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.machine import Fold
from penstock.ledger.tail import Tail, monotonic_ms
from penstock.settings import Settings

_STEP_MS = 200
_READ_MAX = 10_000


class Shown(Enum):
    """The state of a slot as it is shown, in the words of commands and metrics."""

    FRESH = "fresh"
    """Its owner was heard of within HB."""
    SILENT = "silent"
    """Its owner was heard of within 2 HB, but not within HB."""
    FREE = "free"
    """Nobody owns it, or its owner has expired: whoever claims it next has it."""
    PAUSED = "paused"
    """Its group is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSeen:
    slot: Slot
    partition: int
    """The coordination partition that it lives in."""
    state: Shown
    owner: Owner | None
    """Only a valid one."""
    last_owner: Owner | None
    """Also one that has expired and was not succeeded."""
    holders: tuple[Owner, ...]
    """Who holds live ranges of it, where it is shared so."""
    epoch: int
    position: int | None
    frontier: int | None
    heard_ms: int | None
    """The log time at which its owner, or a holder of a range, was last heard of."""
    age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    owner: Owner
    state: str
    """fresh, silent, or expired."""
    slots: int
    """How many it holds or, expired, held when it was last heard of."""
    groups: tuple[str, ...]
    heard_ms: int
    age_ms: int


class PauseSeen(NamedTuple):
    by: str
    until_ms: int
    partitions: tuple[int, ...]
    """The coordination partitions in which it holds; a pause that was half written lacks some."""


Folds = Mapping[int, Fold[Claims]]


# What the folds tell


def now_in(fold: Fold[Claims], wall_ms: int) -> int:
    return max(wall_ms, fold.clock_ms)


def slots_seen(folds: Folds, wall_ms: int) -> list[SlotSeen]:
    found = [
        slot_seen(folds, slot, wall_ms, partition=partition) for partition in folds for slot in _slots(folds, partition)
    ]
    return sorted(found, key=lambda seen: (seen.slot.group, seen.slot.topic, seen.slot.partition or 0))


def slot_seen(folds: Folds, slot: Slot, wall_ms: int, *, partition: int) -> SlotSeen:
    fold = folds[partition]
    machine, now_ms = fold.machine, now_in(fold, wall_ms)
    state = machine.slot(slot)
    heard_ms = max((renewed_ms for _, renewed_ms in _tenures(state)), default=None)
    return SlotSeen(
        slot=slot,
        partition=partition,
        state=_shown(machine, slot, heard_ms, now_ms),
        owner=machine.valid_owner(state, now_ms),
        last_owner=state.owner,
        holders=tuple(sorted(set(_live_holders(machine, state, now_ms)))),
        epoch=state.epoch,
        position=state.position,
        frontier=state.map.frontier,
        heard_ms=heard_ms,
        age_ms=None if heard_ms is None else now_ms - heard_ms,
    )


def members_seen(folds: Folds, wall_ms: int, *, group: str | None = None) -> list[MemberSeen]:
    held: dict[Owner, list[tuple[Slot, int, int]]] = {}
    for partition, fold in folds.items():
        now_ms = now_in(fold, wall_ms)
        for slot in _slots(folds, partition):
            if group is None or slot.group == group:
                for owner, renewed_ms in _tenures(fold.machine.slot(slot)):
                    held.setdefault(owner, []).append((slot, renewed_ms, now_ms))
    lease_ms = max((fold.machine.lease_ms for fold in folds.values()), default=0)
    return [_member(owner, tenures, lease_ms) for owner, tenures in sorted(held.items())]


def pauses_seen(folds: Folds, wall_ms: int) -> dict[str, PauseSeen]:
    """The groups that are paused now; where partitions differ, the pause that lasts longest."""
    found: dict[str, PauseSeen] = {}
    for partition, fold in sorted(folds.items()):
        for group in fold.machine.pauses:
            pause = fold.machine.pause_of(group, now_in(fold, wall_ms))
            if pause is not None:
                before = found.get(group, PauseSeen(pause.by, pause.until_ms, ()))
                longest = max((pause.until_ms, pause.by), (before.until_ms, before.by))
                found[group] = PauseSeen(longest[1], longest[0], (*before.partitions, partition))
    return dict(sorted(found.items()))


def known_groups(folds: Folds) -> frozenset[str]:
    slots = {slot.group for fold in folds.values() for slot in fold.machine.slots}
    return frozenset(slots.union(*(fold.machine.pauses for fold in folds.values())))


def found_slot(folds: Folds, text: str) -> SlotPlace:
    """The slot of that name, as `claims ls` prints it.

    Raises NotFound when nobody was ever granted it.
    """
    for partition, fold in folds.items():
        for slot in fold.machine.slots:
            if str(slot) == text:
                return SlotPlace(slot, partition)
    raise no_slot(text)


def slot_place(folds: Folds, text: str) -> SlotPlace:
    """Where that slot is or, if nobody was ever granted it, would be."""
    try:
        return found_slot(folds, text)
    except NotFound:
        slot = slot_named(text)
        return SlotPlace(slot, partition_of(slot, len(folds)))


def slot_named(text: str) -> Slot:
    """The slot that such a name means, whether the ledger knows it or not.

    Raises NotFound for what names no slot.
    """
    group, _, rest = text.partition("/")
    topic, _, number = rest.rpartition("/")
    if not group or not rest:
        raise no_slot(text)
    return Slot(group, topic, int(number)) if topic and number.isdecimal() else Slot(group, rest)


def no_slot(text: str) -> NotFound:
    return NotFound(f"there is no slot {text}", next_step="`penstock claims ls` lists the slots that were ever claimed")


class SlotPlace(NamedTuple):
    slot: Slot
    partition: int


def check_group(folds: Folds, group: str) -> None:
    """Raises NotFound when the ledger has never heard of the group."""
    if group not in known_groups(folds):
        raise NotFound(f"there is no group {group}", next_step="`penstock claims ls` lists the groups with their slots")


def _slots(folds: Folds, partition: int) -> Iterable[Slot]:
    return folds[partition].machine.slots


def _shown(machine: Claims, slot: Slot, heard_ms: int | None, now_ms: int) -> Shown:
    if machine.pause_of(slot.group, now_ms) is not None:
        return Shown.PAUSED
    if heard_ms is None or not machine.is_valid(heard_ms, now_ms):
        return Shown.FREE
    return Shown.FRESH if now_ms - heard_ms < machine.founded.heartbeat_ms else Shown.SILENT


def _tenures(state: SlotState) -> Iterator[tuple[Owner, int]]:
    """Everybody who has the slot, or a range of it, with the time of the last renewal; whether valid or not."""
    if state.owner is not None:
        yield state.owner, state.renewed_ms
    for item in state.map:
        if item.tenancy is not None:
            yield item.tenancy.owner, item.tenancy.renewed_ms


def _live_holders(machine: Claims, state: SlotState, now_ms: int) -> Iterator[Owner]:
    for item in state.map:
        if item.tenancy is not None and machine.is_valid(item.tenancy.renewed_ms, now_ms):
            yield item.tenancy.owner


def _member(owner: Owner, tenures: list[tuple[Slot, int, int]], lease_ms: int) -> MemberSeen:
    _, heard_ms, now_ms = max(tenures, key=lambda tenure: tenure[1])
    age_ms = now_ms - heard_ms
    return MemberSeen(
        owner=owner,
        state="fresh" if age_ms < lease_ms // 2 else "silent" if age_ms < lease_ms else "expired",
        slots=len({slot for slot, _, _ in tenures}),
        groups=tuple(sorted({slot.group for slot, _, _ in tenures})),
        heard_ms=heard_ms,
        age_ms=age_ms,
    )


# Reading


@contextmanager
def opened(settings: Settings) -> Iterator[Tail[Claims]]:
    """A tail of the coordination ledger that follows nothing yet, and never writes a snapshot.

    Raises NotFound without its topics, Refused with wrong settings of theirs.
    """
    log, snapshots = open_ledger(settings.kafka, coordination_topic(settings))
    tail = Tail(
        log,
        snapshots,
        machine=Claims,
        instance=f"look-{uuid.uuid4().hex}",
        monotonic_ms=monotonic_ms,
        fresh_ms=max(1, settings.claims.heartbeat // 2),
        snapshot_every=2**62,
    )
    try:
        yield tail
    finally:
        tail.close()


def read_all(tail: Tail[Claims], settings: Settings) -> Folds:
    """The folds of all partitions, read to an end that was asked for after this was called.

    Raises BrokerUnavailable when nothing moves for the request time-out.
    """
    partitions = range(tail.log.partition_count())
    tail.follow(partitions)
    patience = Patience(settings.kafka.request_timeout)
    while not all(tail.is_caught_up(p) or tail.fold(p).halt is not None for p in partitions):
        tail.step(_STEP_MS)
        patience.check(tuple(tail.fold(p).next_offset for p in partitions), tail.log.name)
    return {partition: tail.fold(partition) for partition in partitions}


@contextmanager
def opened_history(settings: Settings, partition: int) -> Iterator[History[Claims]]:
    with history.opened_history(settings.kafka, coordination_topic(settings), partition, Claims) as opened_one:
        yield opened_one
