"""`penstock peek QUEUE`: messages by their state, without taking them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, print_json, print_table, say
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.queue.leases import Lease
    from penstock.queue.peek import Peeked

_ROW_CHARACTERS = 60


@click.command()
@click.argument("queue")
@click.option("--group", metavar="GROUP", help="The consuming application.  [default: the only one that there is]")
@click.option(
    "--state",
    type=click.Choice(["ready", "leased", "waiting", "dead"]),
    default="ready",
    show_default=True,
    help="Which messages.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many, at most.")
@click.option("--bytes", "bytes_max", type=click.IntRange(min=0), default=1_000, show_default=True, help="Of a value.")
@click.option("--topic", help="The topic with the messages.  [default: called like the queue]")
@setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic.")
@json_option
@kafka_options
def command(
    settings: Settings,
    *,
    queue: str,
    group: str | None,
    state: str,
    limit: int,
    bytes_max: int,
    topic: str | None,
    as_json: bool,
) -> None:
    """Show messages of QUEUE that are ready, leased, waiting for their time, or dead; the oldest first.

    Nothing is taken: no attempt is counted, no lease is given. The attempt is the one to come, or the one under way;
    of dead ones, how many there were.
    """
    from penstock.cli.claims import reached
    from penstock.queue.look import found_queue
    from penstock.queue.peek import peek

    settings = reached(settings)
    named = found_queue(settings, topic or queue, group)
    shared = queue if topic not in (None, queue) else None
    now_ms = time.time_ns() // 1_000_000
    found = peek(settings, named, state=state, limit=limit, wall_ms=now_ms, queue=shared)
    if as_json:
        print_json(
            {
                "queue": queue,
                "topic": named.topic,
                "group": named.group,
                "state": state,
                "messages": [_document(one, bytes_max) for one in found.messages],
                "more": found.more,
                "missing": found.missing,
                "halted": {str(partition): reason for partition, reason in found.halted.items()},
            }
        )
        return
    columns = ["partition", "offset", "id", "key", "age", "attempt", *_COLUMNS[state], "value"]
    print_table(columns, [_row(one, state, now_ms) for one in found.messages])
    if found.more:
        say("there are more, or may be: --limit shows more of them")
    if found.missing:
        say(f"{found.missing} dead letters are not in the topic of the dead letters")
    for partition, reason in found.halted.items():
        say(f"partition {partition} has halted: {reason}")


_COLUMNS = {
    "ready": ["error"],
    "leased": ["worker", "expires in"],
    "waiting": ["due in", "error"],
    "dead": ["reason", "error"],
}


def _row(one: Peeked, state: str, now_ms: int) -> tuple[object, ...]:
    from penstock.cli.claims_view import age

    def until(time_ms: int | None) -> str:
        return age(None if time_ms is None else max(0, time_ms - now_ms))

    error = _line((one.error or "-").partition("\n")[0])
    special: dict[str, list[object]] = {
        "ready": [error],
        "leased": ["-", "-"] if one.lease is None else [_line(one.lease.worker), until(_expires_ms(one.lease))],
        "waiting": [until(one.due_ms), error],
        "dead": [_line(one.reason or "-"), error],
    }
    value = "-" if one.value is None else _line(_shown(one.value[: 4 * _ROW_CHARACTERS])[0])
    key = "-" if one.key is None else _line(_shown(one.key)[0])
    return (
        one.partition,
        one.offset,
        one.id,
        key,
        age(max(0, now_ms - one.time_ms)),
        one.attempt,
        *special[state],
        value,
    )


def _document(one: Peeked, bytes_max: int) -> dict[str, Any]:
    key, key_format = (None, None) if one.key is None else _shown(one.key)
    value, value_format = (None, None) if one.value is None else _shown(one.value[:bytes_max])
    return {
        "partition": one.partition,
        "offset": one.offset,
        "id": one.id,
        "key": key,
        "key_format": key_format,
        "time_ms": one.time_ms,
        "attempt": one.attempt,
        "losses": one.losses,
        "due_ms": one.due_ms,
        "expires_ms": one.expires_ms,
        "lease": None if one.lease is None else _lease(one.lease),
        "reason": one.reason,
        "error": one.error,
        "headers": [[name, None if value is None else _shown(value)[0]] for name, value in one.headers],
        "size_bytes": 0 if one.value is None else len(one.value),
        "value": value,
        "value_format": value_format,
        "is_cut": one.value is not None and len(one.value) > bytes_max,
    }


def _lease(lease: Lease) -> dict[str, Any]:
    return {"epoch": lease.epoch, "worker": lease.worker, "expires_ms": _expires_ms(lease)}


def _expires_ms(lease: Lease) -> int:
    from penstock.queue.ranges import OFFSET_MAX

    return min(lease.renewed_ms + lease.lease_ms, OFFSET_MAX)


def _shown(data: bytes) -> tuple[str, str]:
    """As text where it is some, also if a cut has parted its last character; else its bytes in hexadecimal digits."""
    for left_out in range(min(4, len(data) + 1)):
        try:
            return data[: len(data) - left_out].decode(), "text"
        except UnicodeDecodeError as problem:
            if problem.end < len(data) - left_out:
                break
    return data.hex(), "hex"


def _line(text: str) -> str:
    """One line of a table, whatever is in it: a message must not steer the terminal."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return plain if len(plain) <= _ROW_CHARACTERS else plain[: _ROW_CHARACTERS - 1] + "…"
