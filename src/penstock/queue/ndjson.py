"""A queue's records as lines of JSON, in both directions: for `penstock queue dump` and `replay`.

    {"offset": 0, "time_ms": 1000, "record": {"type": "taken", "worker": "w1", "ranges": [[0, 500]], "lease_ms": 30000}}

A line may carry `"raw"` (base64) instead of `"record"`, and `"version"` for an envelope of another version. What is no
record of ours becomes junk, as it would be in the log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import msgspec

from penstock.errors import UsageError
from penstock.ledger.codec import Codec, Record, encode, enveloped
from penstock.ledger.machine import LEDGER_RECORDS, Fold, Judged
from penstock.queue.cells import Cell, Status
from penstock.queue.leases import Lease
from penstock.queue.ranges import OFFSET_MAX, Range, joined
from penstock.queue.records import RECORD_TYPES, Progressed, QueueFounded
from penstock.queue.rulings import Ruling
from penstock.queue.spans import Spans
from penstock.queue.state import QueueMachine

_TAGS = {kind: kind.__struct_config__.tag for kind in (*LEDGER_RECORDS, *RECORD_TYPES)}
_TYPES = {tag: kind for kind, tag in _TAGS.items()}
_NEUTRAL: Mapping[str, Any] = {"request": 0, "version": 1, "topic_id": "", "start": 0, "queues": [], "by": ""}
"""What a line may leave out, besides the fields that have a default in the log."""
_codec = Codec((*LEDGER_RECORDS, *RECORD_TYPES), speaks=QueueMachine.speaks)
_NOT_A_RECORD = enveloped(msgspec.msgpack.encode(["not_a_record"]))


class Line(NamedTuple):
    offset: int
    time_ms: int
    value: bytes | None


# Reading


def read_line(text: bytes, number: int) -> Line:
    """Raises UsageError for what is no line of this form; a record that makes no sense is junk, not an error."""
    try:
        fields = msgspec.json.decode(text)
        offset, time_ms = fields["offset"], fields["time_ms"]
        if type(offset) is not int or type(time_ms) is not int or not 0 <= offset < 2**63 > abs(time_ms):
            raise TypeError("offset and time_ms must be whole numbers of 63 bits")
        value = _value(fields)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as problem:
        raise UsageError(
            f"line {number} is no line of a dump: {problem}",
            next_step='each line needs "offset", "time_ms" and "record" (or "raw", or "version")',
        ) from problem
    return Line(offset, time_ms, value)


def _value(fields: Mapping[str, Any]) -> bytes | None:
    if "raw" in fields:
        raw = fields["raw"]
        return None if raw is None else base64.b64decode(raw, validate=True)
    if "record" not in fields and "version" not in fields:
        raise KeyError("record")
    version = fields.get("version", 1)
    if type(version) is not int or not 0 <= version <= 255:
        raise TypeError("version must be 0 to 255")
    record = _record(fields.get("record"))
    if record is None:
        return enveloped(b"\xc0", version=version) if "version" in fields else _NOT_A_RECORD
    return encode(record, version)


def _record(fields: Any) -> Record | None:
    name = fields.get("type") if isinstance(fields, dict) else None
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    try:
        record = msgspec.convert([name, *_positional(kind, fields)], kind)
        encode(record)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return record


def _positional(kind: type[Record], fields: Mapping[str, Any]) -> list[Any]:
    """The fields in the order of the log; one that is missing or null is neutral. Others are passed over."""
    defaults = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    given = {**_NEUTRAL, **defaults, **{name: value for name, value in fields.items() if value is not None}}
    if kind in LEDGER_RECORDS and "v" in given:
        given["version"] = given["v"]
    if kind is Progressed:
        given["data"] = _data(given["data"])
    return [given[name] for name in kind.__struct_fields__]


def _data(told: Any) -> bytes:
    """A token is text where it can be; any other is {"base64": "…"}."""
    if isinstance(told, dict):
        return base64.b64decode(told["base64"], validate=True)
    return str.encode(told)


def is_genesis(value: bytes | None) -> bool:
    decoded = _codec.decode(value)
    return isinstance(decoded, tuple) and isinstance(decoded[1], QueueFounded)


# Writing


def line_of(offset: int, time_ms: int, value: bytes | None, judged: Judged) -> dict[str, Any]:
    """What `read_line` reads."""
    if judged.record is None:
        raw = None if value is None else base64.b64encode(value).decode()
        return {"offset": offset, "time_ms": time_ms, "raw": raw}
    return {"offset": offset, "time_ms": time_ms, "record": _fields(judged.record)}


def _fields(record: Record) -> dict[str, Any]:
    named = {name: getattr(record, name) for name in record.__struct_fields__}
    if isinstance(record, Progressed):
        named["data"] = _told(record.data)
    return {"type": _TAGS[type(record)], **named}


def _told(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def verdict_line(offset: int, judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict
    covered = verdict.covered if isinstance(verdict, Ruling) else ()
    return {"offset": offset, "verdict": verdict.kind.value, "reason": verdict.reason or None, "covered": covered}


# The state


class _Seen(NamedTuple):
    start: int
    end: int
    cell: Cell


def state_line(fold: Fold[QueueMachine], *, at_ms: int) -> dict[str, Any]:
    """The state as it looks at that log time."""
    machine = fold.machine
    seen = [_Seen(start, end, cell) for (start, cell), (end, _) in pairwise(machine.cells)]
    position = machine.position
    paused = {queue: machine.pause_of(queue, at_ms) for queue in sorted(machine.pauses)}
    state = {
        "clock_ms": fold.clock_ms,
        "position": position,
        "finished": [[s.start, s.end] for s in seen if s.cell.status is Status.FINISHED and s.end > position],
        "leases": [entry for _, lease in sorted(machine.leases.items()) for entry in _leases(machine, lease, at_ms)],
        "waiting": [
            {"ranges": ranges, "due_ms": due_ms, "attempt": attempt}
            for (due_ms, attempt), ranges in _grouped(
                (s, (s.cell.due_ms, s.cell.attempt)) for s in seen if s.cell.status is Status.WAITING
            )
        ],
        "charges": [
            {"ranges": ranges, "charges": charges}
            for charges, ranges in _grouped((s, s.cell.charges) for s in seen if s.cell.charges)
        ],
        "losses": [
            {"ranges": ranges, "losses": losses}
            for losses, ranges in _grouped((s, s.cell.losses) for s in seen if s.cell.losses)
        ],
        "to_copy": [
            _to_copy(machine, epoch, charges, ranges)
            for (epoch, charges), ranges in _grouped(
                (s, (s.cell.epoch, s.cell.charges)) for s in seen if s.cell.status is Status.BURIED
            )
        ],
        "dead": _flagged(machine.dead),
        "kept": [[*part] for part in joined((s.start, s.end) for s in seen if s.cell.is_kept)],
        "progress": [
            {"offset": offset, "data": _told(s.cell.progress)}
            for s in seen
            if s.cell.progress is not None
            for offset in range(s.start, s.end)
        ],
        "queues": machine.queues,
        "paused": {queue: pause._asdict() for queue, pause in paused.items() if pause is not None},
        "halted": fold.halt is not None,
        "hash": fold.hash(),
    }
    return {"state": state}


def _leases(machine: QueueMachine, lease: Lease, at_ms: int) -> Iterable[dict[str, Any]]:
    """One entry; or one for each attempt, if the offsets in the lease differ in that."""
    runs = [run for start, end in lease.held for run in machine.cells.runs(start, end)]
    for attempt, ranges in _grouped((_Seen(*run), run.value.attempt) for run in runs):
        yield {
            "epoch": lease.epoch,
            "worker": lease.worker,
            "ranges": ranges,
            "attempt": attempt,
            "expires_ms": min(lease.renewed_ms + lease.lease_ms, OFFSET_MAX),
            "expired": not lease.is_valid(at_ms),
            "producer": lease.producer,
            "alone": lease.alone,
        }


def _to_copy(machine: QueueMachine, epoch: int, charges: int, ranges: list[Range]) -> dict[str, Any]:
    burial = machine.burials[epoch]
    told = {"buried_at": epoch, "buried_ms": burial.time_ms, "reason": burial.reason, "error": burial.error}
    return {"ranges": ranges, "attempts": charges, **told}


def _grouped(keyed: Iterable[tuple[_Seen, Any]]) -> list[tuple[Any, list[Range]]]:
    """Ranges by what they have in common, in the order of that."""
    in_order = sorted(keyed, key=lambda pair: (pair[1], pair[0].start))
    return [
        (key, list(joined((seen.start, seen.end) for seen, _ in group)))
        for key, group in groupby(in_order, key=lambda pair: pair[1])
    ]


def _flagged(flags: Spans[bool]) -> list[list[int]]:
    return [[start, end] for (start, is_set), (end, _) in pairwise(flags) if is_set]
