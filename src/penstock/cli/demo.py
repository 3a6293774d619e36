"""`penstock demo`: tell the whole story on an embedded broker. Every figure is counted, none is written here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from penstock.cli.broker import progress_shown
from penstock.cli.demo_claims import claims
from penstock.cli.demo_lake import lake
from penstock.cli.demo_queue import queue
from penstock.cli.output import json_option, print_json, quiet_option
from penstock.errors import CheckFailed, TransientError

if TYPE_CHECKING:
    from penstock.broker import Embedded
    from penstock.ledger.counter import Counter
    from penstock.ledger.tail import Tail, Ticket
    from penstock.settings import KafkaSettings

LEDGER = "penstock-demo"
FACTS = 10_000
LEASE_MS = 10 * 60_000
SNAPSHOT_EVERY = 6_000
PATIENCE_S = 60.0


@dataclass(slots=True)
class Story:
    """What happened so far: lines for people, figures for programs, and what must be true of them."""

    quiet: bool
    figures: dict[str, object] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def tell(self, chapter: str, sentence: str, seconds: float | None = None) -> None:
        if not self.quiet:
            took = "" if seconds is None else f"{seconds:>6.1f} s"
            click.echo(f"{chapter:<10}{sentence:<84}{took}".rstrip())

    def check(self, what: str, holds: bool) -> None:
        if not holds:
            self.broken.append(what)


@click.command()
@click.option("--once", is_flag=True, help="End after the story; exit 0 only if every count is right.")
@json_option
@quiet_option
def command(*, once: bool, as_json: bool, quiet: bool) -> None:
    """Tell the whole story on an embedded broker.

    Starts an Apache Kafka of its own on a free port, appends facts to a ledger, kills the broker in the middle, and
    shows that nothing was lost or doubled; then four workers handle a queue, two members share a topic, Spark lands the
    queue's orders in a Delta table, and one of each is killed. Leaves nothing behind.
    """
    from penstock.broker import Embedded
    from penstock.settings import KafkaSettings

    story = Story(quiet or as_json)
    began = time.monotonic()
    with progress_shown(quiet=story.quiet) as progress, Embedded(progress=progress) as kafka:
        settings = KafkaSettings(bootstrap_servers=kafka.bootstrap)
        story.tell("broker", f"Apache Kafka {kafka.version} on {kafka.bootstrap}", time.monotonic() - began)
        story.figures["broker"] = {"version": kafka.version, "ready_s": round(time.monotonic() - began, 2)}
        _ledger(story, kafka, settings)
        queue(story, settings)
        claims(story, settings)
        lake(story, settings)
        if as_json:
            print_json({"figures": story.figures, "broken": story.broken})
        _end(story, kafka, stay=not (once or as_json))
    if story.broken:
        raise CheckFailed("; ".join(story.broken), next_step="please report this with the output of `penstock doctor`")


def _ledger(story: Story, kafka: Embedded, settings: KafkaSettings) -> None:
    from penstock.ledger.topics import make_ledger

    make_ledger(settings, LEDGER, partitions=1)
    with _tail(settings, "demo-writer") as writer:
        counting = _Counting(writer, _found_and_take(writer))
        _append(story, counting)
        _append_through_a_crash(story, kafka, counting)
        _account(story, counting)
        _open_again(story, settings, writer, "replay")
        writer.keep_snapshots()
        counting.append(FACTS)
        _read_back(writer, counting.tickets)
        writer.keep_snapshots()
        _open_again(story, settings, writer, "snapshot")


@dataclass(slots=True)
class _Counting:
    """Adds to the counter under one lease, and keeps every ticket."""

    writer: Tail[Counter]
    epoch: int
    tickets: list[Ticket] = field(default_factory=list)

    def append(self, count: int) -> None:
        from penstock.ledger.counter import CounterAdded

        for number in range(len(self.tickets), len(self.tickets) + count):
            self.tickets.append(self.writer.append(0, CounterAdded(self.epoch, number)))

    def accepted(self) -> set[int | None]:
        return {ticket.offset for ticket in self.tickets if ticket.verdict is not None and ticket.verdict.is_accepted}

    def under_way(self) -> int:
        return sum(ticket.verdict is None for ticket in self.tickets)


def _found_and_take(writer: Tail[Counter]) -> int:
    from penstock.ledger.counter import CounterFounded, CounterTaken

    writer.append(0, CounterFounded(LEASE_MS))
    taken = writer.append(0, CounterTaken(writer.instance))
    _read_back(writer, [taken])
    if taken.offset is None:
        raise CheckFailed("the lease was not granted")
    return taken.offset


def _append(story: Story, counting: _Counting) -> None:
    began = time.monotonic()
    counting.append(FACTS)
    _read_back(counting.writer, counting.tickets)
    sentence = f"{len(counting.tickets):,} facts appended, {len(counting.accepted()):,} read back and accepted"
    story.tell("ledger", sentence, time.monotonic() - began)


def _append_through_a_crash(story: Story, kafka: Embedded, counting: _Counting) -> None:
    pid = kafka.nodes[0].pid
    counting.append(FACTS // 2)
    kafka.kill(1)
    counting.append(FACTS - FACTS // 2)
    under_way = counting.under_way()
    story.tell("crash", f"broker (pid {pid}) killed with kill -9, {under_way:,} facts under way")
    began = time.monotonic()
    kafka.start(1)
    _read_back(counting.writer, counting.tickets)
    seconds = time.monotonic() - began
    story.tell("", "started again on the same data, everything read back", seconds)
    story.figures["crash"] = {"under_way": under_way, "recovered_s": round(seconds, 2)}
    story.check("the crash caught nothing under way", under_way > 0)


def _account(story: Story, counting: _Counting) -> None:
    """Compare what was asked with what the ledger says, each from its own side."""
    sent, accepted, counted = len(counting.tickets), len(counting.accepted()), counting.writer.fold(0).machine.total
    lost, twice = sent - accepted, counted - accepted
    story.tell("", f"sent {sent:,} · counted {counted:,} · lost {lost} · twice {twice}")
    story.figures["ledger"] = {"sent": sent, "counted": counted, "lost": lost, "twice": twice}
    story.check(f"{lost} facts were lost", lost == 0)
    story.check(f"{twice} facts count twice", twice == 0)


def _open_again(story: Story, settings: KafkaSettings, writer: Tail[Counter], chapter: str) -> None:
    """A stranger opens the ledger and must come to the writer's state."""
    from penstock.ledger.tail import read_to_end

    began = time.monotonic()
    with _tail(settings, f"demo-{chapter}") as reader:
        base, start = reader.fold(0).next_offset, reader.log.bounds([0])[0].start
        read_to_end(reader, [0])
        ours, theirs = writer.fold(0).hash(), reader.fold(0).hash()
    way = f"from a snapshot at {base - 1:,}, log cut below {start:,}" if base else "from the whole log"
    story.tell(
        chapter,
        f"opened {way}: {'same' if ours == theirs else 'ANOTHER'} state {theirs[:12]}",
        time.monotonic() - began,
    )
    story.figures[chapter] = {"from_offset": base, "log_start": start, "hash": theirs}
    story.check(f"{chapter}: another state than the writer's", ours == theirs)
    story.check("snapshot: the log was not cut", chapter != "snapshot" or start > 0)


def _read_back(writer: Tail[Counter], tickets: list[Ticket]) -> None:
    """Step until every ticket has its verdict; the broker may be away meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while any(ticket.verdict is None for ticket in reversed(tickets)):
        try:
            writer.step(200)
        except TransientError as trouble:
            if time.monotonic() > deadline:
                raise CheckFailed("facts were not read back", next_step="look at the broker's log") from trouble
        if time.monotonic() > deadline:
            raise CheckFailed("facts were not read back", next_step="look at the broker's log")


@contextmanager
def _tail(settings: KafkaSettings, instance: str) -> Iterator[Tail[Counter]]:
    from penstock.ledger.counter import Counter
    from penstock.ledger.kafka_log import open_ledger
    from penstock.ledger.tail import Tail, monotonic_ms

    log, snapshots = open_ledger(settings, LEDGER)
    tail = Tail(
        log,
        snapshots,
        machine=Counter,
        instance=instance,
        monotonic_ms=monotonic_ms,
        fresh_ms=1_000,
        snapshot_every=SNAPSHOT_EVERY,
    )
    try:
        tail.follow([0])
        yield tail
    finally:
        tail.close()


def _end(story: Story, kafka: Embedded, *, stay: bool) -> None:
    from penstock.cli.demo_worker import QUEUE

    if story.broken:
        return
    if not stay:
        story.tell("next", "penstock demo, which leaves the broker up to look at      make test      README.md")
        return
    story.tell("next", f"penstock doctor -b {kafka.bootstrap}      make test      README.md")
    story.tell("", f"penstock peek {QUEUE} --state dead -b {kafka.bootstrap}")
    try:
        # In here: who is quick may press it as soon as it is said.
        story.tell("", "the broker runs on; Ctrl-C stops all")
        while True:
            time.sleep(3_600)
    except KeyboardInterrupt:
        return
