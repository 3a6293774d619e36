"""`penstock doctor`: is everything as Penstock needs it, and what mends it if not."""

from __future__ import annotations

import click

from penstock.cli.options import kafka_options, setting_option
from penstock.cli.output import console, json_option, print_json, say
from penstock.doctor.findings import Finding, Status, judged, verdict_of
from penstock.doctor.look import look, with_running_broker
from penstock.doctor.mend import mend
from penstock.settings import Settings

_MARKS = {Status.GREEN: "ok", Status.YELLOW: "warn", Status.RED: "red", Status.SKIPPED: "skip"}
_COLOURS = {Status.GREEN: "green", Status.YELLOW: "yellow", Status.RED: "bold red", Status.SKIPPED: "dim"}


@click.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended without loss, then check again.")
@click.option("--lake", is_flag=True, help="Check what the lake needs, too: Java, Spark, jars, master, tables.")
@setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic.")
@json_option
@kafka_options
def command(settings: Settings, *, fix: bool, lake: bool, as_json: bool) -> None:
    """Check this machine, the broker and the topics.

    Every finding that is not green says what mends it. Exit 5 if something is red, 4 if the broker does not answer.
    """
    settings = with_running_broker(settings)
    seen = look(settings)
    done: tuple[str, ...] = ()
    if fix:
        done = mend(settings, seen)
        seen = look(settings)
    findings = (*judged(seen), *(_of_lake(settings) if lake else ()))
    if as_json:
        print_json({"status": _worst(findings), "fixed": list(done), "findings": [_document(f) for f in findings]})
    else:
        for sentence in done:
            say(f"fixed: {sentence}")
        _print(findings)
    problem = verdict_of(findings)
    if problem is not None:
        raise problem


def _of_lake(settings: Settings) -> tuple[Finding, ...]:
    from penstock.doctor.lake import lake_findings, look_at_lake

    return tuple(lake_findings(look_at_lake(settings)))


def _worst(findings: tuple[Finding, ...]) -> str:
    order = (Status.RED, Status.YELLOW)
    statuses = {finding.status for finding in findings}
    return next((status.value for status in order if status in statuses), Status.GREEN.value)


def _document(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "status": finding.status.value, "what": finding.what, "mend": finding.mend}


def _print(findings: tuple[Finding, ...]) -> None:
    from rich.text import Text

    out = console()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = Text(_MARKS[finding.status].ljust(5), style=_COLOURS[finding.status])
        out.print(mark + Text(f"{finding.name.ljust(width)}  {finding.what}"))
        if finding.mend and finding.status is not Status.GREEN:
            out.print(Text(" " * (width + 7) + f"-> {finding.mend}", style="dim"))
