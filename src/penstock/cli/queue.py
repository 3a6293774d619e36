"""`penstock queue dump` and `replay`: a queue's ledger as lines of JSON, and through the machine again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from penstock.cli import dumped
from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, print_fields, print_table
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.ledger.machine import Fold
    from penstock.queue.ndjson import Line
    from penstock.queue.state import QueueMachine


@click.group()
def command() -> None:
    """Why was this message redelivered? A queue's ledger, written down and judged again."""


# Writing


@command.command()
@click.argument("topic")
@click.option("--group", metavar="GROUP", required=True, help="The consuming application.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.  [default: all]")
@setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic.")
@json_option
@kafka_options
def dump(settings: Settings, *, topic: str, group: str, partition: int | None, as_json: bool) -> None:
    """Print the ledger of TOPIC's queue as NDJSON, for `penstock queue replay`.

    Where the log was cut, the first line of a partition is the snapshot that stands for what is gone.
    """
    from penstock.cli.claims import reached
    from penstock.errors import NotFound
    from penstock.ledger.history import opened_history
    from penstock.ledger.kafka_log import open_ledger
    from penstock.queue.names import ledger_topic
    from penstock.queue.ndjson import line_of
    from penstock.queue.state import QueueMachine

    settings = reached(settings)
    ledger = ledger_topic(settings, topic=topic, group=group)
    log, snapshots = open_ledger(settings.kafka, ledger)
    try:
        count = log.partition_count()
    finally:
        log.close()
        snapshots.close()
    if partition is not None and partition >= count:
        raise NotFound(f"{ledger} has no partition {partition}", next_step=f"it has 0 to {count - 1}")
    for number in range(count) if partition is None else [partition]:
        with opened_history(settings.kafka, ledger, number, QueueMachine) as history:
            for line in dumped.written(history, number, line_of):
                click.echo(msgspec.json.encode(line).decode())


# Reading


@command.command()
@click.argument("file", type=click.File("rb"))
@click.option("--at", "at_ms", type=int, metavar="MS", help="Show the state at this log time.  [default: the last one]")
@click.option(
    "--log-start",
    type=click.IntRange(min=0),
    default=0,
    help="Where the ledger begins: lines below are not there any more. Without a snapshot line nothing can be judged.",
)
@click.option("--snapshot-at", type=int, metavar="OFFSET", help="Go on from a snapshot taken after this offset.")
@click.option("--partition", type=click.IntRange(min=0), help="Which partition, of a dump of several.")
@json_option
def replay(
    *,
    file: BinaryIO,
    at_ms: int | None,
    log_start: int,
    snapshot_at: int | None,
    partition: int | None,
    as_json: bool,
) -> None:
    """Feed a dumped ledger (NDJSON) through the machine: verdict by verdict, then the state.

    Answers "why was this redelivered?" without a broker. FILE may be - for standard input. A file without a genesis is
    judged as if one with start 0 stood before its first line.
    """
    from penstock.queue.ndjson import read_line, state_line, verdict_line
    from penstock.queue.state import QueueMachine

    every = dumped.read(file, partition, read_line, of="a queue")
    lines = [line for line in every if line.offset >= log_start or isinstance(line, dumped.Snapshot)]
    fold = _begun(lines, log_start)
    verdicts = []
    for line in lines:
        if isinstance(line, dumped.Snapshot):
            continue
        if line.offset < fold.next_offset:
            continue  # told by the snapshot
        judged = fold.feed(line.offset, line.time_ms, line.value)
        verdicts.append(verdict_line(line.offset, judged))
        if line.offset == snapshot_at:
            fold = dumped.through_a_snapshot(fold, QueueMachine())
    state = state_line(fold, at_ms=fold.clock_ms if at_ms is None else at_ms)
    if as_json:
        for document in (*verdicts, state):
            click.echo(msgspec.json.encode(document).decode())
    else:
        _print(verdicts, state["state"])


def _begun(lines: Iterable[Line | dumped.Snapshot], log_start: int) -> Fold[QueueMachine]:
    """The state before the first line that counts: of the snapshot, or as new; never as new where something is cut."""
    from penstock.ledger.machine import Fold, Halt
    from penstock.queue.ndjson import is_genesis
    from penstock.queue.records import QueueFounded
    from penstock.queue.state import QueueMachine

    fold = Fold(QueueMachine())
    snapshots = [line for line in lines if isinstance(line, dumped.Snapshot) and line.offset + 1 >= log_start]
    if snapshots:
        dumped.load(fold, snapshots[0], of="a queue")
    elif log_start > 0:
        reason = f"the log begins at {log_start}, and no snapshot stands for what was before"
        fold.halt = Halt(log_start, reason, "dump it again where the snapshots are")
    elif not any(is_genesis(line.value) for line in lines if not isinstance(line, dumped.Snapshot)):
        fold.found(QueueFounded(version=1, topic_id="", start=0, queues=()))
    return fold


def _print(verdicts: Iterable[dict[str, Any]], state: dict[str, Any]) -> None:
    rows = [(v["offset"], v["verdict"], _text(v["covered"]), v["reason"] or "") for v in verdicts]
    print_table(["offset", "verdict", "covered", "reason"], rows)
    click.echo()
    leases = [
        (
            lease["epoch"],
            lease["worker"],
            _text(lease["ranges"]),
            lease["attempt"],
            lease["expires_ms"],
            "expired" if lease["expired"] else "valid",
        )
        for lease in state["leases"]
    ]
    if leases:
        print_table(["epoch", "worker", "ranges", "attempt", "expires_ms", "lease"], leases)
        click.echo()
    waiting = [f"{_text(one['ranges'])} until {one['due_ms']}, attempt {one['attempt']}" for one in state["waiting"]]
    losses = [f"{_text(one['ranges'])} ({one['losses']})" for one in state["losses"]]
    paused = [f"{queue} by {pause['by'] or 'nobody known'}" for queue, pause in state["paused"].items()]
    shown = {
        "clock_ms": state["clock_ms"],
        "position": state["position"],
        "finished": _text(state["finished"]) or "-",
        "waiting": "; ".join(waiting) or "-",
        "losses": "; ".join(losses) or "-",
        "to_copy": "; ".join(_text(one["ranges"]) for one in state["to_copy"]) or "-",
        "dead": _text(state["dead"]) or "-",
        "paused": "; ".join(paused) or "-",
        **{name: state[name] for name in ("halted", "hash")},
    }
    print_fields(shown)


def _text(ranges: Iterable[Iterable[int]]) -> str:
    return " ".join("{}-{}".format(*part) for part in ranges)
