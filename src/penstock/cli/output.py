"""How commands print: data to stdout as a table or JSON, talk to stderr."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.observe.events import Event

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(function: Command) -> Command:
    """Add `--json` to a command: one document (or a line per item) on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def quiet_option(function: Command) -> Command:
    return click.option("--quiet", "-q", is_flag=True, help="Say nothing but the result.")(function)


def print_json(document: object) -> None:
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    click.echo(text.decode())


def print_event(event: Event) -> None:
    """One line of JSON. Whoever reads them and goes away (`| head`) ends the command, in order."""
    from penstock.observe.logs import event_fields, event_name

    document = {"event": event_name(event), **event_fields(event)}
    try:
        click.echo(msgspec.json.encode(document, enc_hook=str).decode())
        sys.stdout.flush()
    except BrokenPipeError:
        print_no_more()
        os.kill(os.getpid(), signal.SIGTERM)


def print_no_more() -> None:
    """The reader of our output went away."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str, *, quiet: bool = False) -> None:
    """Talk: to stderr, so that stdout stays data."""
    if not quiet:
        click.echo(text, err=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; bold heads only on a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # as it is: a value may look like markup
    console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {value}")


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Not on a terminal the width is unbounded: a pipe must not see folded lines.
    width = None if stream.isatty() else 10_000
    return Console(stderr=stderr, width=width, highlight=False, no_color="NO_COLOR" in os.environ, soft_wrap=True)
