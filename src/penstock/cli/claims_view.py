"""How `penstock claims` shows what it saw: rows of tables, and documents whose fields are a contract."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cli.output import print_fields, print_json
from penstock.values import Duration

if TYPE_CHECKING:
    from penstock.claims.explain import Moment
    from penstock.claims.intervals import Owner
    from penstock.claims.lag import SlotLag
    from penstock.claims.look import Folds, MemberSeen, PauseSeen, SlotSeen
    from penstock.claims.operate import ResetDone


def slot_row(seen: SlotSeen) -> tuple[object, ...]:
    return str(seen.slot), seen.state.value, _owners(seen), seen.epoch, _or_dash(seen.position), age(seen.age_ms)


def slot_document(seen: SlotSeen) -> dict[str, object]:
    place = {"name": seen.slot.topic} if seen.slot.partition is None else seen.slot._asdict()
    return {
        "slot": str(seen.slot),
        **place,
        "group": seen.slot.group,
        "state": seen.state.value,
        "owner": None if seen.owner is None else owner_name(seen.owner),
        "last_owner": None if seen.last_owner is None else owner_name(seen.last_owner),
        "range_owners": [owner_name(owner) for owner in seen.holders],
        "epoch": seen.epoch,
        "position": seen.position,
        "frontier": seen.frontier,
        "age_ms": seen.age_ms,
        "coordination_partition": seen.partition,
    }


def pause_document(pause: PauseSeen) -> dict[str, object]:
    return {"by": pause.by, "until_ms": pause.until_ms, "coordination_partitions": list(pause.partitions)}


def member_document(member: MemberSeen) -> dict[str, object]:
    client, instance = member.owner
    return {
        "client": client,
        "instance": instance,
        "state": member.state,
        "slots": member.slots,
        "groups": list(member.groups),
        "age_ms": member.age_ms,
    }


def lag_row(lag: SlotLag, now_ms: int) -> tuple[object, ...]:
    seen = lag.seen
    counts = (_or_dash(seen.position), _or_dash(lag.end), _or_dash(lag.lag_records))
    return str(seen.slot), seen.state.value, _owners(seen), *counts, age(lag.age_ms(now_ms))


def lag_document(lag: SlotLag, now_ms: int) -> dict[str, object]:
    return {
        "slot": str(lag.seen.slot),
        "state": lag.seen.state.value,
        "position": lag.seen.position,
        "end": lag.end,
        "lag_records": lag.lag_records,
        "age_ms": lag.age_ms(now_ms),
    }


def moment_row(moment: Moment) -> tuple[object, ...]:
    record = moment.type if moment.count == 1 else f"{moment.type} x{moment.count}"
    then = f"{moment.owner or '-'} @ {moment.epoch}"
    return (
        *(moment.offset, at(moment.time_ms), record, moment.sender, moment.what),
        *(moment.verdict, moment.reason, then),
    )


def moment_document(moment: Moment) -> dict[str, object]:
    return {name: getattr(moment, name) for name in moment.__dataclass_fields__}


def print_reset(done: list[ResetDone], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "slots": [
                    {
                        "slot": str(one.slot),
                        "epoch": one.epoch,
                        "position_before": one.position_before,
                        "position": one.position,
                    }
                    for one in done
                ]
            }
        )
    elif done:
        print_fields({str(one.slot): f"{_or_dash(one.position_before)} -> {one.position}" for one in done})


def halted(folds: Folds) -> list[dict[str, object]]:
    return [
        {"coordination_partition": partition, **fold.halt._asdict()}
        for partition, fold in folds.items()
        if fold.halt is not None
    ]


def _owners(seen: SlotSeen) -> str:
    owners = [seen.owner] if seen.owner is not None else seen.holders
    return ", ".join(map(owner_name, owners)) or "-"


def owner_name(owner: Owner) -> str:
    return f"{owner[0]}/{owner[1]}"


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def age(age_ms: int | None) -> str:
    if age_ms is None:
        return "-"
    return f"{age_ms / 1_000:.1f}s" if age_ms < 60_000 else str(Duration(age_ms // 60_000 * 60_000))


def at(time_ms: int) -> str:
    return (
        datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    )
