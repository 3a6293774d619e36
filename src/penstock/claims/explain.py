"""Why a slot belongs to whom it belongs: the records that decided it, and a sentence that sums them up.

Pure. Within one tenure, records that say the same of the slot (a heartbeat like the last one, a claim that was refused
for the same reason) are one moment with a count; whatever changed the owner or the epoch stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.claims.intervals import Owner
from penstock.claims.look import Shown, SlotSeen
from penstock.claims.records import RECORD_TYPES, Claimed, GroupPaused, Heartbeat, Slot
from penstock.claims.state import Claims
from penstock.ledger.codec import Record, snake_case
from penstock.ledger.log import Entry
from penstock.ledger.machine import ClockReset, Fold, Judged, Verdict
from penstock.values import Duration

SLOT_RECORDS = frozenset(
    snake_case(kind.__name__) for kind in RECORD_TYPES if kind is Heartbeat or "slot" in kind.__struct_fields__
)
"""The records that name slots, as they are called in the log."""

_NAMED_ELSEWHERE = frozenset({"slot", "beats", "client", "instance", "group", "by"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    offset: int
    """Of the last record, where there are several."""
    time_ms: int
    type: str
    sender: str
    what: str
    """The values that it carried."""
    verdict: str
    reason: str
    owner: str | None
    """Whose the slot is after it, expired or not."""
    epoch: int
    count: int = 1


class _Tenure(NamedTuple):
    owner: Owner | None
    epoch: int
    renewed_ms: int


class Explanation:
    """Collects the moments of one slot from the records of its coordination partition, in their order."""

    def __init__(self, slot: Slot, fold: Fold[Claims]) -> None:
        self._slot, self._fold = slot, fold
        self._before = self._tenure()
        self._past: list[Moment] = []
        self._present: dict[tuple[str, ...], Moment] = {}

    def see(self, entry: Entry, judged: Judged) -> None:
        """Take the record that the fold has just judged."""
        verdict = verdict_on(self._slot, judged)
        if judged.record is None or verdict is None:
            return
        before, after = self._before, self._tenure()
        moment = _moment(entry, judged.record, self._slot, verdict, after)
        self._before = after
        if (after.owner, after.epoch) == (before.owner, before.epoch):
            self._add(moment)
            return
        self._past = self.moments()
        self._present = {}
        reason = moment.reason or _how(judged.record, before, self._fold)
        self._past.append(replace(moment, reason=reason))

    def moments(self) -> list[Moment]:
        return [*self._past, *sorted(self._present.values(), key=lambda moment: moment.offset)]

    def _add(self, moment: Moment) -> None:
        told = moment.what if moment.type == "group_paused" else ""
        key = (moment.type, moment.sender, moment.verdict, moment.reason, told)
        same = self._present.get(key)
        self._present[key] = replace(moment, count=same.count + 1) if same is not None else moment

    def _tenure(self) -> _Tenure:
        state = self._fold.machine.slot(self._slot)
        return _Tenure(state.owner, state.epoch, state.renewed_ms)


def verdict_on(slot: Slot, judged: Judged) -> Verdict | None:
    """What a record did to this slot; None if it says nothing of it, nor of its group's pause, nor of all renewals."""
    match judged.record:
        case Heartbeat(beats=beats):
            parts = judged.verdict.parts or (judged.verdict,) * len(beats)
            return next((part for beat, part in zip(beats, parts, strict=True) if beat.slot == slot), None)
        case GroupPaused(group=group):
            return judged.verdict if group == slot.group else None
        case ClockReset():
            return judged.verdict
        case record:
            return judged.verdict if getattr(record, "slot", None) == slot else None


def summary(seen: SlotSeen, *, lease_ms: int, paused_by: str | None = None) -> str:
    """The sentence that says whose it is now, and why."""
    sentence = _whose(seen, lease_ms)
    if seen.state is Shown.PAUSED:
        return f"{sentence}; its group is paused by {paused_by}, and nobody else is granted anything"
    return sentence


def _whose(seen: SlotSeen, lease_ms: int) -> str:
    heard = "" if seen.age_ms is None else f"last heard of {_age(seen.age_ms)} ago"
    if seen.owner is not None:
        return f"{seen.slot} belongs to {named(seen.owner)} under epoch {seen.epoch}, {heard}"
    if seen.holders:
        holders = ", ".join(map(named, seen.holders))
        return f"{seen.slot} is shared in ranges by {holders}; the latest grant has epoch {seen.epoch}, {heard}"
    if seen.last_owner is not None:
        return (
            f"{seen.slot} is free: {named(seen.last_owner)} (epoch {seen.epoch}) was {heard}, and a lease lasts "
            f"{Duration(lease_ms)}; whoever claims it next has it"
        )
    if seen.epoch < 0:
        return f"{seen.slot} is free: it was never granted to anybody"
    return f"{seen.slot} is free: it was given back; the last grant had epoch {seen.epoch}"


def named(owner: Owner) -> str:
    return f"{owner[0]}/{owner[1]}"


def _moment(entry: Entry, record: Record, slot: Slot, verdict: Verdict, after: _Tenure) -> Moment:
    return Moment(
        offset=entry.offset,
        time_ms=entry.time_ms,
        type=snake_case(type(record).__name__),
        sender=_sender(record),
        what=", ".join(_values(record, slot)),
        verdict=verdict.kind.value,
        reason=verdict.reason,
        owner=None if after.owner is None else named(after.owner),
        epoch=after.epoch,
    )


def _sender(record: Record) -> str:
    client, instance = getattr(record, "client", None), getattr(record, "instance", None)
    return f"{client}/{instance}" if client is not None else str(getattr(record, "by", ""))


def _values(record: Record, slot: Slot) -> Iterator[str]:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    if isinstance(record, Heartbeat):
        fields |= next(beat._asdict() for beat in record.beats if beat.slot == slot)
    for name, value in fields.items():
        if name in _NAMED_ELSEWHERE or value is None or value is False or value == ():
            continue
        yield name if value is True else f"{name} {', '.join(value) if isinstance(value, tuple) else value}"


def _how(record: Record, before: _Tenure, fold: Fold[Claims]) -> str:
    """Why a grant was possible: the verdict itself says only that it was."""
    if not isinstance(record, Claimed):
        return ""
    if before.owner is None:
        return "it was free"
    silence_ms = fold.clock_ms - before.renewed_ms
    if silence_ms >= fold.machine.lease_ms:
        return f"{named(before.owner)} had not been heard of for {_age(silence_ms)}"
    return f"it reclaimed it from its older instance {before.owner[1]}"


def _age(ms: int) -> str:
    return f"{ms / 1_000:.1f} s" if ms < 120_000 else str(Duration(ms // 1_000 * 1_000))
