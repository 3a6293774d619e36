"""`penstock send QUEUE`: one message, the same many times, or one for every line of a file."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, quiet_option, say
from penstock.errors import NotFound, PenstockError, UsageError
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.queue.sending import Sender, Sent

# So many may be under way at once; what comes first is told first.
_UNDER_WAY_MAX = 10_000


@click.command()
@click.argument("queue")
@click.argument("value", required=False)
@click.option("--file", type=click.File("rb"), help="Send what this file holds, instead of VALUE.")
@click.option("--lines", is_flag=True, help="Every line of the file, or else of standard input, is a message.")
@click.option("--key", help="Messages with the same key go to the same partition.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--id", "message_id", metavar="ID", help="The message's id.  [default: a new one]")
@click.option("--delay", metavar="DURATION", help='Not to be handled before this has passed, as in "10m".')
@click.option("--at", metavar="TIME", help="Not to be handled before this time, as in 2031-05-01T08:00:00Z.")
@click.option("--ttl", metavar="DURATION", help="Not to be handled later than this after it was due.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Send it so many times.")
@click.option("--make", is_flag=True, help="Make the topic if it is missing, with [queue] partitions.")
@click.option("--topic", help="The topic with the messages.  [default: called like the queue]")
@setting_option("send.timeout", metavar="DURATION", help="How long a send may take.  [default: 30s]")
@json_option
@quiet_option
@kafka_options
def command(
    settings: Settings,
    *,
    queue: str,
    value: str | None,
    file: IO[bytes] | None,
    lines: bool,
    key: str | None,
    headers: tuple[str, ...],
    message_id: str | None,
    delay: str | None,
    at: str | None,
    ttl: str | None,
    count: int,
    make: bool,
    topic: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Send VALUE to QUEUE, and print the id of the message when the broker has it; VALUE - is standard input.

    With --json a line of JSON for each message: its id, queue, topic, partition and offset. What was sent before
    something failed is printed all the same.
    """
    from penstock.cli.claims import reached
    from penstock.queue.sending import Sender

    if lines and value is None and file is None:
        value = "-"
    source = _source(value, file)
    if message_id is not None and (lines or count > 1):
        raise UsageError("one id cannot be that of many messages", next_step="leave --id out, or send one message")
    if lines and source is None:
        raise UsageError("--lines wants lines to read", next_step="give --file FILE, or - for standard input")
    said: dict[str, Any] = {
        "key": key,
        "headers": [_header(one) for one in headers],
        "id": message_id,
        "delay": delay,
        "at": None if at is None else _time(at),
        "ttl": ttl,
    }
    settings = reached(settings)
    if make:
        _make(settings, topic or queue)
    with Sender(settings.kafka, queue, topic=topic, settings=settings.send) as sender:
        sent = 0
        for one in _sent(sender, _values(value, source, lines=lines, count=count), said):
            sent += 1
            _print(sender, one, as_json=as_json)
    say(f"{sent:,} messages are in {sender.topic}", quiet=quiet or sent == 1)


def _make(settings: Settings, topic: str) -> None:
    from penstock.kafka.topics import Admin
    from penstock.queue.names import checked_topic
    from penstock.queue.upkeep import make_topic

    with Admin(settings.kafka) as admin:
        make_topic(admin, checked_topic(topic, settings), partitions=settings.queue.partitions)


def _source(value: str | None, file: IO[bytes] | None) -> IO[bytes] | None:
    if (value is None) == (file is None):
        raise UsageError(
            "there is nothing to send" if value is None else "both VALUE and --file are given",
            next_step="give VALUE, or --file FILE, or - for standard input",
        )
    return sys.stdin.buffer if value == "-" else file


def _values(value: str | None, source: IO[bytes] | None, *, lines: bool, count: int) -> Iterator[bytes | str]:
    if source is None:
        yield from [value or ""] * count
    elif lines:
        for line in source:
            yield from [line.removesuffix(b"\n").removesuffix(b"\r")] * count
    else:
        yield from [source.read()] * count


def _sent(sender: Sender, values: Iterable[bytes | str], said: dict[str, Any]) -> Iterator[Sent]:
    """Each as soon as it is acknowledged, in order; after a failure what was under way is told before it is raised."""
    under_way: deque[Future[Sent]] = deque()
    trouble: list[PenstockError] = []
    for number, value in enumerate(values, start=1):
        try:
            under_way.append(sender.send_soon(value, **said))
        except UsageError as problem:
            trouble.append(problem if number == 1 else _of_message(number, problem))
        except NotFound as problem:
            trouble.append(_no_queue(sender, problem))
        if trouble:
            break
        while under_way and (under_way[0].done() or len(under_way) >= _UNDER_WAY_MAX):
            yield from _told(under_way.popleft(), trouble)
    for future in under_way:
        yield from _told(future, trouble)
    if trouble:
        raise trouble[0]


def _told(future: Future[Sent], trouble: list[PenstockError]) -> Iterator[Sent]:
    try:
        yield future.result()
    except PenstockError as problem:
        trouble.append(problem)


def _print(sender: Sender, sent: Sent, *, as_json: bool) -> None:
    if as_json:
        document = {"id": sent.id, "queue": sender.queue, "topic": sender.topic, **_place(sent)}
        click.echo(msgspec.json.encode(document).decode())
    else:
        click.echo(sent.id)


def _place(sent: Sent) -> dict[str, int | None]:
    return {"partition": sent.partition, "offset": sent.offset}


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise UsageError(f"header {name!r} has no form NAME=VALUE", next_step="write it as in --header tenant=acme")
    return name, value


def _time(given: str) -> datetime:
    try:
        when = datetime.fromisoformat(given)
    except ValueError as problem:
        raise UsageError(f"{given!r} is no time", next_step="write it as in 2031-05-01T08:00:00Z") from problem
    if when.utcoffset() is None:
        raise UsageError(f"{given} has no time zone", next_step=f"write {given}Z for UTC, or {given}+02:00")
    return when


def _of_message(number: int, problem: UsageError) -> UsageError:
    return UsageError(f"message {number}: {problem.what}", next_step=problem.next_step)


def _no_queue(sender: Sender, problem: NotFound) -> NotFound:
    told = NotFound(
        f"there is no queue {sender.queue}: the broker has no topic {sender.topic}",
        next_step="add --make to make it; `penstock queues` lists those that are consumed",
    )
    told.__cause__ = problem
    return told
