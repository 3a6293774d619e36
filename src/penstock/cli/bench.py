"""`penstock bench`: measure Penstock side by side with the bare client, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from penstock.bench.report import BenchReport
from penstock.cli.options import kafka_options
from penstock.cli.output import json_option, print_json, print_table, quiet_option, say
from penstock.errors import CheckFailed
from penstock.settings import KafkaSettings, Settings

Measure = Callable[..., BenchReport]


@click.group()
def command() -> None:
    """Measure Penstock side by side with the bare client.

    Without --bootstrap-servers an embedded broker is started for the run. Ratios are medians over alternating runs;
    absolute figures say more about the machine than about Penstock. Exit 5 if a figure misses its bound.
    """


@command.command()
@click.option("--quick", is_flag=True, help="Within a minute; the figures scatter more.")
@json_option
@quiet_option
@kafka_options
def ledger(settings: Settings, *, quick: bool, as_json: bool, quiet: bool) -> None:
    """Appending, reading back and replaying a ledger."""
    from penstock.bench.ledger import measure

    _run(settings, measure, quick=quick, as_json=as_json, quiet=quiet)


@command.command()
@click.option("--quick", is_flag=True, help="Within two minutes; the figures scatter more.")
@json_option
@quiet_option
@kafka_options
def claims(settings: Settings, *, quick: bool, as_json: bool, quiet: bool) -> None:
    """Claiming, replaying, taking over, and consuming what members share."""
    from penstock.bench.claims import measure

    _run(settings, measure, quick=quick, as_json=as_json, quiet=quiet)


@command.command()
@click.option("--quick", is_flag=True, help="Within three minutes; the figures scatter more.")
@json_option
@quiet_option
@kafka_options
def queue(settings: Settings, *, quick: bool, as_json: bool, quiet: bool) -> None:
    """Handling, sending, latency, redelivery, and what gaps, backlogs and a rebuild cost."""
    from penstock.bench.queue import measure

    _run(settings, measure, quick=quick, as_json=as_json, quiet=quiet)


@command.command()
@click.option("--quick", is_flag=True, help="Within four minutes, with fewer messages; the figures scatter more.")
@json_option
@quiet_option
@kafka_options
def lake(settings: Settings, *, quick: bool, as_json: bool, quiet: bool) -> None:
    """Landing next to Spark's own sinks; latency, memory, file sizes, and the return after a kill."""
    from penstock.bench.lake import measure

    _run(settings, measure, quick=quick, as_json=as_json, quiet=quiet)


def _run(settings: Settings, measure: Measure, *, quick: bool, as_json: bool, quiet: bool) -> None:
    with broker_for(settings, quiet=quiet) as kafka:
        report = measure(kafka, quick=quick, told=lambda what: say(what, quiet=quiet))
    if as_json:
        print_json(report.document())
    else:
        print_table(
            ["figure", "value", "bound", ""],
            [
                (name, f"{value:,.4g}", report.bounds.get(name, ""), "missed" if name in report.missed() else "")
                for name, value in report.figures.items()
            ],
        )
    if report.missed():
        raise CheckFailed(
            f"{', '.join(report.missed())} missed the bound",
            next_step="run it again on an idle machine; `uptime` tells how busy this one is",
        )


@contextmanager
def broker_for(settings: Settings, *, quiet: bool = False) -> Iterator[KafkaSettings]:
    """The Kafka that is configured, else an embedded one for as long as this lasts, and says so."""
    if settings.kafka.bootstrap_servers:
        yield settings.kafka
        return
    from dataclasses import replace

    from penstock.broker import Embedded

    say("no bootstrap_servers are set: starting an embedded broker", quiet=quiet)
    with Embedded() as kafka:
        yield replace(settings.kafka, bootstrap_servers=kafka.bootstrap)
