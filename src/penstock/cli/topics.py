"""`penstock topics`: which topics Penstock needs, and making them."""

from __future__ import annotations

from contextlib import closing

import click

from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import json_option, print_json, print_table
from penstock.errors import Refused, UsageError
from penstock.kafka.topics import TopicSpec
from penstock.ledger.topics import REPLICATION, for_cluster
from penstock.settings import Settings
from penstock.topics import Step, carry_out, create_command, needed, steps

_DONE = {"create": "created", "alter": "altered", "none": "unchanged", "refuse": "refused"}


@click.group()
def command() -> None:
    """Plan and make the topics that Penstock needs."""


_prefix_option = setting_option(
    "topic_prefix", "--prefix", metavar="PREFIX", help="Put before the name of every topic."
)


@command.command()
@_prefix_option
@click.option(
    "--format",
    "layout",
    type=click.Choice(["table", "commands"]),
    default="table",
    help="commands: for Kafka's own kafka-topics.sh.",
)
@json_option
@kafka_options
def plan(settings: Settings, *, layout: str, as_json: bool) -> None:
    """Print every topic that the configuration needs, with its settings and the reason. Asks no broker."""
    specs = [for_cluster(spec, brokers=_brokers_expected(settings)) for spec in needed(settings)]
    if as_json:
        print_json({"topics": [_document(spec) for spec in specs]})
    elif layout == "commands":
        click.echo("\n".join(map(create_command, specs)))
    else:
        columns = ["topic", "partitions", "replication", "settings", "reason"]
        print_table(columns, [[s.name, s.partitions, s.replication, _config_text(s), s.reason] for s in specs])


@command.command()
@_prefix_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
@kafka_options
def apply(settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Make the topics that are missing, and alter settings where that is safe; a second time changes nothing.

    A topic with another number of partitions is refused (exit 6), and then nothing at all is done.
    """
    if not settings.kafka.bootstrap_servers:
        raise UsageError(
            "no broker is named", next_step="add --bootstrap-servers HOST:PORT, or set [kafka] bootstrap_servers"
        )
    from penstock.kafka.topics import Admin

    with closing(Admin(settings.kafka)) as admin:
        specs = needed(settings)
        todo = steps(specs, admin.describe([s.name for s in specs]), brokers=len(admin.cluster().brokers))
        refused = [step for step in todo if step.action == "refuse"]
        is_applied = not dry_run and not refused
        if is_applied:
            carry_out(todo, admin)
    _report(todo, as_json=as_json, is_applied=is_applied)
    if refused:
        raise Refused("; ".join(p for step in refused for p in step.problems), next_step=refused[0].next_step)


def _brokers_expected(settings: Settings) -> int:
    """Of the embedded broker we know how many there are; anybody else's Kafka is planned with three or more."""
    return REPLICATION if settings.kafka.bootstrap_servers else settings.broker.brokers


def _report(todo: tuple[Step, ...], *, as_json: bool, is_applied: bool) -> None:
    if as_json:
        print_json({"applied": is_applied, "topics": [_step_document(step) for step in todo]})
    else:
        print_table(["topic", "done" if is_applied else "would be", "what"], [_step_row(step) for step in todo])


def _step_row(step: Step) -> list[str]:
    changes = [f"{c.setting}: {c.is_now or 'unset'} -> {c.should_be}" for c in step.changes]
    created = (
        [f"{step.spec.partitions} partitions, replication {step.spec.replication}"] if step.action == "create" else []
    )
    return [step.spec.name, _DONE[step.action], "; ".join([*created, *changes, *step.problems])]


def _step_document(step: Step) -> dict[str, object]:
    return {
        "name": step.spec.name,
        "action": _DONE[step.action],
        "changes": [change._asdict() for change in step.changes],
        "problems": list(step.problems),
        "next": step.next_step,
    }


def _document(spec: TopicSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "partitions": spec.partitions,
        "replication": spec.replication,
        "config": dict(spec.config),
        "reason": spec.reason,
        "command": create_command(spec),
    }


def _config_text(spec: TopicSpec) -> str:
    return " ".join(f"{setting}={value}" for setting, value in sorted(spec.config.items()))
