"""Coordination records as lines of JSON, in both directions: for `penstock claims dump` and `replay`.

    {"offset": 0, "time_ms": 100000, "record": {"type": "claimed", "group": "g", "topic": "t", "partition": 0, …}}

A line may carry `"raw"` (base64) instead of `"record"`, and `"version"` for an envelope of another version. What is no
record of ours becomes junk, as it would be in the log.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.claims.intervals import Interval, Owner, Status
from penstock.claims.records import RECORD_TYPES, Beat, Heartbeat, Slot
from penstock.claims.state import Claims, SlotState
from penstock.errors import UsageError
from penstock.ledger.codec import Record, encode, enveloped, snake_case
from penstock.ledger.machine import LEDGER_RECORDS, Fold, Judged

_TYPES = {snake_case(kind.__name__): kind for kind in (*LEDGER_RECORDS, *RECORD_TYPES)}
_SLOT_FIELDS = ("group", "topic", "partition", "name")
_NOT_A_RECORD = enveloped(msgspec.msgpack.encode(["not_a_record"]))


class Line(NamedTuple):
    offset: int
    time_ms: int
    value: bytes | None
    slots: tuple[Slot, ...]
    """The slots that it names, whatever it is worth."""


# Reading


def read_line(text: bytes, number: int) -> Line:
    """Raises UsageError for what is no line of this form; a record that makes no sense is junk, not an error."""
    try:
        fields = msgspec.json.decode(text)
        offset, time_ms = fields["offset"], fields["time_ms"]
        if type(offset) is not int or type(time_ms) is not int or not 0 <= offset < 2**63 > abs(time_ms):
            raise TypeError("offset and time_ms must be whole numbers of 63 bits")
        value, slots = _value(fields)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as problem:
        raise UsageError(
            f"line {number} is no line of a dump: {problem}",
            next_step='each line needs "offset", "time_ms" and "record" (or "raw", or "version")',
        ) from problem
    return Line(offset, time_ms, value, slots)


def _value(fields: Mapping[str, Any]) -> tuple[bytes | None, tuple[Slot, ...]]:
    if "raw" in fields:
        raw = fields["raw"]
        return (None if raw is None else base64.b64decode(raw, validate=True)), ()
    version = fields.get("version", 1)
    if "record" not in fields and "version" not in fields:
        raise KeyError("record")
    record = _record(fields.get("record"))
    if type(version) is not int or not 0 <= version <= 255:
        raise TypeError("version must be 0 to 255")
    if record is None:
        return (enveloped(b"\xc0", version=version) if "version" in fields else _NOT_A_RECORD), ()
    return encode(record, version), _named(record)


def _record(fields: Any) -> Record | None:
    name = fields.get("type") if isinstance(fields, dict) else None
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    plain = {name: value for name, value in fields.items() if name != "type" and name not in _SLOT_FIELDS}
    try:
        if "group" in fields and kind.__struct_fields__[0] != "group":
            plain = _with_slot(kind, plain, _slot(fields))
        elif "group" in fields:
            plain["group"] = fields["group"]
        record = msgspec.convert([_TYPES_TAG[kind], *_positional(kind, plain)], kind)
        encode(record)
    except (msgspec.ValidationError, KeyError, TypeError, OverflowError):
        return None
    return record


_TYPES_TAG = {kind: tag for tag, kind in _TYPES.items()}


def _slot(fields: Mapping[str, Any]) -> list[Any]:
    if "name" in fields:
        return [fields["group"], fields["name"], None]
    return [fields["group"], fields["topic"], fields["partition"]]


def _with_slot(kind: type[Record], plain: dict[str, Any], slot: list[Any]) -> dict[str, Any]:
    if kind is not Heartbeat:
        return {**plain, "slot": slot}
    fenced = plain.pop("fenced", None) or ()
    beat = [slot, plain.pop("epoch"), plain.pop("position", None), plain.pop("producer", None), fenced]
    return {**plain, "beats": [beat]}


def _positional(kind: type[Record], plain: Mapping[str, Any]) -> list[Any]:
    """The fields in the order of the log; a missing one takes its default, if it has one. Others are passed over."""
    defaults = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    given = {name: value for name, value in plain.items() if value is not None}
    return [given[name] if name in given else defaults[name] for name in kind.__struct_fields__]


def _named(record: Record) -> tuple[Slot, ...]:
    if isinstance(record, Heartbeat):
        return tuple(beat.slot for beat in record.beats)
    slot = getattr(record, "slot", None)
    return (slot,) if isinstance(slot, Slot) else ()


# Writing


def line_of(offset: int, time_ms: int, value: bytes | None, judged: Judged) -> dict[str, Any]:
    """What `read_line` reads."""
    if judged.record is None:
        raw = None if value is None else base64.b64encode(value).decode()
        return {"offset": offset, "time_ms": time_ms, "raw": raw}
    return {"offset": offset, "time_ms": time_ms, "record": _fields(judged.record)}


def _fields(record: Record) -> dict[str, Any]:
    named = {name: getattr(record, name) for name in record.__struct_fields__}
    slot = named.pop("slot", None)
    beats: tuple[Beat, ...] = named.pop("beats", ())
    if len(beats) == 1:
        slot, beat = beats[0].slot, beats[0]._asdict()
        named |= {name: value for name, value in beat.items() if name != "slot"}
    elif beats:
        named["beats"] = [[list(beat.slot), *beat[1:]] for beat in beats]
    place = {} if slot is None else _place(slot)
    return {"type": _TYPES_TAG[type(record)], **place, **named}


def _place(slot: Slot) -> dict[str, Any]:
    if slot.partition is None:
        return {"group": slot.group, "name": slot.topic}
    return {"group": slot.group, "topic": slot.topic, "partition": slot.partition}


def verdict_line(offset: int, judged: Judged) -> dict[str, Any]:
    return {"offset": offset, "verdict": judged.verdict.kind.value, "reason": judged.verdict.reason or None}


def state_line(fold: Fold[Claims], slots: set[Slot], *, at_ms: int) -> dict[str, Any]:
    """The state as it looks at that log time, with these slots besides those that it knows."""
    machine = fold.machine
    named = sorted(slots | set(machine.slots), key=str)
    paused = {group: machine.pause_of(group, at_ms) for group in sorted(machine.pauses)}
    return {
        "slots": {str(slot): _shown(machine, machine.slot(slot), at_ms) for slot in named},
        "paused": {group: {"by": p.by, "until_ms": p.until_ms} for group, p in paused.items() if p is not None},
        "halted": fold.halt is not None,
        "hash": fold.hash(),
    }


def _shown(machine: Claims, state: SlotState, at_ms: int) -> dict[str, Any]:
    return {
        "owner": _name(machine.valid_owner(state, at_ms)),
        "epoch": state.epoch,
        "position": state.position,
        "intent": state.intent,
        "producers": sorted(state.producers),
        "frontier": state.map.frontier,
        "ranges": [_shown_range(machine, item, at_ms) for item in state.map],
    }


def _shown_range(machine: Claims, item: Interval, at_ms: int) -> dict[str, Any]:
    held = item.tenancy
    is_live = held is not None and machine.is_valid(held.renewed_ms, at_ms)
    is_expired = item.status is Status.LOST or (held is not None and not is_live)
    return {
        "start": item.start,
        "end": item.end,
        "state": "expired" if is_expired else item.status.value,
        "owner": _name(held.owner) if held is not None and is_live else None,
        "epoch": held.epoch if held is not None else None,
        "deliveries": item.deliveries,
        "bury": held is not None and held.is_to_bury,
    }


def _name(owner: Owner | None) -> str | None:
    return None if owner is None else f"{owner[0]}/{owner[1]}"
