"""`penstock claims`: who owns what, why, and how far it is; pause, resume and reset a group."""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.claims_log import dump, replay
from penstock.cli.claims_view import (
    age,
    at,
    halted,
    lag_document,
    lag_row,
    member_document,
    moment_document,
    moment_row,
    owner_name,
    pause_document,
    print_reset,
    slot_document,
    slot_row,
)
from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, print_json, print_table, say
from penstock.errors import UsageError
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.claims.look import Folds, SlotSeen
    from penstock.claims.operate import ResetDone
    from penstock.claims.records import Slot

Command = Callable[..., Any]


@click.group()
def command() -> None:
    """Who owns what, and why.

    A slot is a partition within a group (GROUP/TOPIC/NUMBER) or a lock (GROUP/NAME). It is fresh (its owner was heard
    of within a heartbeat), silent (within two), free or paused.
    """


command.add_command(dump)
command.add_command(replay)

_prefix_option = setting_option(
    "topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic."
)
_group_option = click.option("--group", metavar="GROUP", help="Only this group.")


def _connected(function: Command) -> Command:
    """The options that every command has which asks a broker."""
    return _prefix_option(json_option(kafka_options(function)))


def reached(settings: Settings) -> Settings:
    """The settings with a broker: the named one, else the embedded one that runs.

    Raises UsageError if there is neither.
    """
    from penstock.doctor.look import with_running_broker

    settings = with_running_broker(settings)
    if not settings.kafka.bootstrap_servers:
        raise UsageError(
            "no broker is named", next_step="add --bootstrap-servers HOST:PORT, or set [kafka] bootstrap_servers"
        )
    return settings


# Looking


@command.command()
@_group_option
@_connected
def ls(settings: Settings, *, group: str | None, as_json: bool) -> None:
    """List the slots: state, owner, epoch (the fencing token), position, and when the owner was last heard of."""
    from penstock.claims.look import pauses_seen

    folds, slots, now_ms = _slots(settings, group)
    pauses = {name: pause for name, pause in pauses_seen(folds, now_ms).items() if group in (None, name)}
    if as_json:
        paused = {name: pause_document(pause) for name, pause in pauses.items()}
        print_json({"slots": [slot_document(seen) for seen in slots], "paused": paused, "halted": halted(folds)})
        return
    columns = ["slot", "state", "owner", "epoch", "position", "age"]
    print_table(columns, [slot_row(seen) for seen in slots])
    for name, pause in pauses.items():
        say(f"{name} is paused by {pause.by} until {at(pause.until_ms)}")
        if len(pause.partitions) < len(folds):
            say(f"  but only in {len(pause.partitions)} of {len(folds)} coordination partitions: pause it again")


@command.command()
@_group_option
@_connected
def members(settings: Settings, *, group: str | None, as_json: bool) -> None:
    """List who owns slots or ranges of them: how many, and when each was last heard of."""
    from penstock.claims.look import members_seen

    folds, _, now_ms = _slots(settings, group)
    found = members_seen(folds, now_ms, group=group)
    if as_json:
        print_json({"members": [member_document(member) for member in found], "halted": halted(folds)})
    else:
        rows = [(owner_name(m.owner), m.state, m.slots, ", ".join(m.groups), age(m.age_ms)) for m in found]
        print_table(["member", "state", "slots", "groups", "last heard of"], rows)


@command.command()
@_group_option
@_connected
def lag(settings: Settings, *, group: str | None, as_json: bool) -> None:
    """Compare the position of each slot with the end of its partition.

    The lag is counted in offsets; the age is that of the next record to be read.
    """
    from penstock.claims.lag import lags

    settings = reached(settings)
    folds, slots, _ = _slots(settings, group)
    found = lags(settings.kafka, slots)
    now_ms = _now_ms()
    if as_json:
        known = sum(each.lag_records or 0 for each in found)
        documents = [lag_document(each, now_ms) for each in found]
        print_json({"slots": documents, "lag_records": known, "halted": halted(folds)})
    else:
        columns = ["slot", "state", "owner", "position", "end", "lag", "age"]
        print_table(columns, [lag_row(each, now_ms) for each in found])


@command.command()
@click.argument("slot")
@_connected
def explain(settings: Settings, *, slot: str, as_json: bool) -> None:
    """Print the log lines that decided who owns SLOT, and the sentence that sums them up.

    Records that say the same as an earlier one of the same tenure are counted, not repeated. What lies before the
    first line was cut away behind a snapshot.
    """
    from penstock.claims.explain import SLOT_RECORDS, Explanation, summary
    from penstock.claims.look import no_slot, opened, opened_history, read_all, slot_place, slot_seen

    settings = reached(settings)
    with opened(settings) as tail:
        place = slot_place(read_all(tail, settings), slot)
    with opened_history(settings, place.partition) as history:
        history.check()
        explanation = Explanation(place.slot, history.fold)
        for entry, judged in history:
            explanation.see(entry, judged)
        since = None if history.base is None else history.base.offset
        machine, folds = history.fold.machine, {place.partition: history.fold}
    seen = slot_seen(folds, place.slot, _now_ms(), partition=place.partition)
    pause = machine.pauses.get(place.slot.group)
    sentence = summary(seen, lease_ms=machine.lease_ms, paused_by=pause.by if pause else None)
    moments = explanation.moments()
    if place.slot not in machine.slots and not any(moment.type in SLOT_RECORDS for moment in moments):
        raise no_slot(slot)
    if as_json:
        print_json(
            {
                **slot_document(seen),
                "summary": sentence,
                "snapshot_offset": since,
                "moments": [moment_document(moment) for moment in moments],
                "halted": halted(folds),
            }
        )
        return
    if since is not None:
        say(f"the log was cut: what happened up to offset {since} is known only as a snapshot")
    columns = ["offset", "time", "record", "by", "what", "verdict", "reason", "then"]
    print_table(columns, [moment_row(moment) for moment in moments])
    click.echo(f"\n{sentence}")


# Changing

_by_option = click.option("--by", metavar="NAME", help="Who does it.  [default: your user name]")
_new_option = click.option("--new", "is_new", is_flag=True, help="It has not been heard of yet, and that is right.")


@command.command()
@click.argument("group")
@click.option("--for", "lasts", required=True, metavar="DURATION", help='How long, as in "10m"; it ends by itself.')
@_by_option
@_new_option
@_connected
def pause(settings: Settings, *, group: str, lasts: str, by: str | None, is_new: bool, as_json: bool) -> None:
    """Pause GROUP: everybody gives back what they have, and nobody but NAME is granted anything."""
    from penstock.claims.look import check_group
    from penstock.claims.operate import operator
    from penstock.values import checked_name, duration

    span, by = duration(lasts), by or _user()
    if span < 1:
        raise UsageError("a pause needs a length", next_step='give one, as in --for 10m; to end one: "claims resume"')
    checked_name("group", group)
    with operator(reached(settings)) as operating:
        if not is_new:
            check_group(operating.folds, group)
        untils = operating.pause(group, lasts=span, by=by)
    if as_json:
        print_json({"group": group, "by": by, "until_ms": untils})
    else:
        say(f"{group} is paused by {by} until {at(max(untils.values()))}, in all {len(untils)} coordination partitions")


@command.command()
@click.argument("group")
@_by_option
@_connected
def resume(settings: Settings, *, group: str, by: str | None, as_json: bool) -> None:
    """End the pause of GROUP, whoever paused it."""
    from penstock.claims.look import check_group, pauses_seen
    from penstock.claims.operate import operator

    by = by or _user()
    with operator(reached(settings)) as operating:
        check_group(operating.folds, group)
        was = pauses_seen(operating.folds, _now_ms()).get(group)
        operating.resume(group, by=by)
    if as_json:
        print_json({"group": group, "by": by, "was_paused_by": was.by if was else None})
    else:
        say(f"{group} goes on" + (f"; it was paused by {was.by}" if was else "; it was not paused"))


@command.command()
@click.argument("slots", nargs=-1, required=True, metavar="SLOT...")
@click.option("--to", required=True, metavar="earliest|latest|OFFSET", help="The next offset to be read.")
@_by_option
@_new_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@_connected
def reset(
    settings: Settings, *, slots: tuple[str, ...], to: str, by: str | None, is_new: bool, yes: bool, as_json: bool
) -> None:
    """Set the position of SLOTs, also backwards: messages will be handled again, or never.

    Refused (exit 6) while somebody owns a slot: pause its group first, in the same name.
    """
    from penstock.claims.operate import operator

    target, by = _target(to), by or _user()
    _confirm(f"Set the position of {', '.join(slots)} to {to}?", yes=yes)
    done: list[ResetDone] = []
    with operator(reached(settings)) as operating:
        wanted = [_slot(operating.folds, text, is_new=is_new) for text in slots]
        try:
            for slot in wanted:
                done.append(operating.reset(slot, target, by=by))
        finally:
            # Also those that were done before one failed.
            print_reset(done, as_json=as_json)


def _target(to: str) -> Any:
    if to in ("earliest", "latest"):
        return to
    if not to.isdecimal():
        raise UsageError(f"{to!r} is no position", next_step="give earliest, latest or an offset")
    return int(to)


def _slot(folds: Folds, text: str, *, is_new: bool) -> Slot:
    from penstock.claims.look import found_slot, slot_named

    return slot_named(text) if is_new else found_slot(folds, text).slot


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this cannot be undone, and there is no terminal to ask on", next_step="add --yes")
    click.confirm(question, abort=True, err=True)


# Inside


def _slots(settings: Settings, group: str | None) -> tuple[Folds, list[SlotSeen], int]:
    """What the ledger knows, and the time at which it is shown."""
    from penstock.claims.look import check_group, opened, read_all, slots_seen

    settings = reached(settings)
    with opened(settings) as tail:
        folds = read_all(tail, settings)
    if group is not None:
        check_group(folds, group)
    now_ms = _now_ms()
    for partition, fold in folds.items():
        if fold.halt is not None:
            say(f"partition {partition} is known only up to offset {fold.halt.offset}: {fold.halt.reason}")
            say(f"next:  {fold.halt.next_step}")
    return folds, [seen for seen in slots_seen(folds, now_ms) if group in (None, seen.slot.group)], now_ms


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's nameless user
        return "operator"
