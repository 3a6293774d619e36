"""`penstock queues`: how many messages are in which state, for each queue and each application that consumes it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, print_json, print_table, say
from penstock.errors import NotFound
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.queue.look import QueueSeen


@click.command()
@click.option("--group", metavar="GROUP", help="Only those that this application consumes.")
@setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic.")
@json_option
@kafka_options
def command(settings: Settings, *, group: str | None, as_json: bool) -> None:
    """List the queues: how many messages are ready, leased, waiting, to be copied and dead; age of the oldest; lag.

    Delays that were given at the send are known to who reads the messages only: so up to 10,000 ready ones of each
    queue are read for it, and what lies behind them counts as ready. The lag is how many offsets lie between the
    position and the end of the topic. Nothing is taken or changed.
    """
    from penstock.cli.claims import reached
    from penstock.queue.delays import with_delays
    from penstock.queue.look import queues_seen

    settings = reached(settings)
    now_ms = time.time_ns() // 1_000_000
    found = with_delays(settings, queues_seen(settings, now_ms, group=group), now_ms)
    if group is not None and not found:
        raise NotFound(f"group {group} consumes no queue", next_step="`penstock queues` lists all")
    if as_json:
        print_json({"queues": [_document(one, now_ms) for one in found]})
        return
    columns = ["queue", "group", "ready", "leased", "waiting", "to copy", "dead", "oldest", "lag"]
    print_table(columns, [_row(one, now_ms) for one in found])
    if not found:
        say("no queue has a ledger yet: a worker makes it")
    for one in found:
        _say_what_is_wrong(one)


def _row(one: QueueSeen, now_ms: int) -> tuple[object, ...]:
    from penstock.cli.claims_view import age
    from penstock.queue.look import Shown

    if one.problem is not None:
        return (one.named.topic, one.named.group, *["-"] * 7)
    states = (Shown.READY, Shown.LEASED, Shown.WAITING, Shown.TO_COPY)
    counts = (f"{count:,}" for count in (*map(one.count, states), one.dead))
    return (one.named.topic, one.named.group, *counts, age(_age_ms(one, now_ms)), f"{one.lag_records:,}")


def _document(one: QueueSeen, now_ms: int) -> dict[str, Any]:
    from penstock.queue.look import Shown

    is_known = one.problem is None
    states = {state.value: one.count(state) if is_known else None for state in Shown if state is not Shown.FINISHED}
    return {
        "queue": one.named.topic,
        "topic": one.named.topic,
        "group": one.named.group,
        "ledger": one.named.ledger,
        **states,
        "dead": one.dead if is_known else None,
        "unread": one.unread if is_known else None,
        "oldest_age_ms": _age_ms(one, now_ms),
        "lag_records": one.lag_records if is_known else None,
        "partitions": len(one.partitions),
        "serves": list(one.queues),
        "workers": one.workers,
        "paused": {queue: pause._asdict() for queue, pause in one.pauses.items()},
        "halted": {str(partition): reason for partition, reason in one.halted.items()},
        "problem": None if one.problem is None else one.problem.what,
    }


def _age_ms(one: QueueSeen, now_ms: int) -> int | None:
    return None if one.oldest_ms is None else max(0, now_ms - one.oldest_ms)


def _say_what_is_wrong(one: QueueSeen) -> None:
    from penstock.queue.look import Shown

    name = f"{one.named.topic} ({one.named.group})"
    if one.problem is not None:
        say(f"{name}: {one.problem.what}")
        say(f"next:  {one.problem.next_step}")
    if one.unread and one.count(Shown.WAITING):
        say(f"{name}: of the ready messages {one.unread:,} were not looked at: some of them may be waiting, too")
    for queue, pause in one.pauses.items():
        say(f"{name}: {queue} is paused by {pause.by}{': ' + pause.reason if pause.reason else ''}")
    for partition, reason in one.halted.items():
        say(f"{name}: partition {partition} has halted: {reason}")
