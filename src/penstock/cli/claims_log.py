"""`penstock claims dump` and `replay`: the coordination log as lines of JSON, and through the machine again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

import click
import msgspec

from penstock.cli import dumped
from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, print_fields, print_table, say
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.claims.records import Slot


# Writing


@click.command()
@click.option("--partition", type=click.IntRange(min=0), help="Only this coordination partition.  [default: all]")
@setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic.")
@json_option
@kafka_options
def dump(settings: Settings, *, partition: int | None, as_json: bool) -> None:
    """Print the coordination log as NDJSON, for `penstock claims replay`.

    Where the log was cut, the first line of a partition is the snapshot that stands for what is gone.
    """
    from penstock.claims.look import opened, opened_history
    from penstock.claims.ndjson import line_of
    from penstock.cli.claims import reached
    from penstock.errors import NotFound

    settings = reached(settings)
    with opened(settings) as tail:
        count, topic = tail.log.partition_count(), tail.log.name
    if partition is not None and partition >= count:
        raise NotFound(f"{topic} has no partition {partition}", next_step=f"it has 0 to {count - 1}")
    for number in range(count) if partition is None else [partition]:
        with opened_history(settings, number) as history:
            for line in dumped.written(history, number, line_of):
                click.echo(msgspec.json.encode(line).decode())
            if history.start > 0 and history.base is None:
                say(f"next:  replay it with --log-start {history.start} --heartbeat-ms HB")


# Reading


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--heartbeat-ms", type=click.IntRange(min=1), help="HB, in place of a genesis record.")
@click.option("--window", type=click.IntRange(min=1), default=100, show_default=True, help="W, with --heartbeat-ms.")
@click.option(
    "--delivery-limit", type=click.IntRange(min=1), default=5, show_default=True, help="D, with --heartbeat-ms."
)
@click.option("--log-start", type=click.IntRange(min=0), default=0, help="Where the log begins; no snapshot exists.")
@click.option("--at", "at_ms", type=int, metavar="MS", help="Show the state at this log time.  [default: the last one]")
@click.option("--snapshot-at", type=int, metavar="OFFSET", help="Go on from a snapshot taken after this offset.")
@click.option("--partition", type=click.IntRange(min=0), help="Which partition, of a dump of several.")
@json_option
def replay(
    *,
    file: BinaryIO,
    heartbeat_ms: int | None,
    window: int,
    delivery_limit: int,
    log_start: int,
    at_ms: int | None,
    snapshot_at: int | None,
    partition: int | None,
    as_json: bool,
) -> None:
    """Feed a dumped coordination log (NDJSON) through the machine: verdict by verdict, then the state.

    Answers "why did it belong to that one?" without a broker. FILE may be - for standard input.
    """
    from penstock.claims.ndjson import read_line, state_line, verdict_line
    from penstock.claims.records import ClaimsFounded
    from penstock.claims.state import Claims
    from penstock.ledger.machine import Fold

    fold = Fold(Claims(log_start=log_start))
    if heartbeat_ms is not None:
        founded = ClaimsFounded(partitions=1, heartbeat_ms=heartbeat_ms, window=window, delivery_limit=delivery_limit)
        fold.found(founded)
    slots: set[Slot] = set()
    verdicts = []
    for line in dumped.read(file, partition, read_line, of="coordination"):
        if line.offset < log_start:
            continue
        if isinstance(line, dumped.Snapshot):
            fold = Fold(Claims())
            dumped.load(fold, line, of="coordination")
            continue
        judged = fold.feed(line.offset, line.time_ms, line.value)
        slots.update(line.slots)
        verdicts.append(verdict_line(line.offset, judged))
        if line.offset == snapshot_at:
            fold = dumped.through_a_snapshot(fold, Claims())
    state = state_line(fold, slots, at_ms=fold.clock_ms if at_ms is None else at_ms)
    if as_json:
        for document in (*verdicts, state):
            click.echo(msgspec.json.encode(document).decode())
    else:
        _print(verdicts, state)


def _print(verdicts: Iterable[dict[str, object]], state: dict[str, object]) -> None:
    print_table(["offset", "verdict", "reason"], [(v["offset"], v["verdict"], v["reason"] or "") for v in verdicts])
    click.echo()
    slots = state["slots"]
    if isinstance(slots, dict):
        rows = [
            (name, slot["owner"] or "-", slot["epoch"], _or_dash(slot["position"]), _or_dash(slot["frontier"]))
            for name, slot in slots.items()
        ]
        print_table(["slot", "owner", "epoch", "position", "frontier"], rows)
    print_fields({"paused": state["paused"], "halted": state["halted"], "hash": state["hash"]})


def _or_dash(value: object) -> object:
    return "-" if value is None else value
