"""How a run of the lake shows itself: a table that moves on a terminal, a line now and then elsewhere, or NDJSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.observe.events import Event, LakeProgressed, subscribed

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_S = 10.0

Show = Callable[[Sequence[LakeProgressed]], None]


@contextmanager
def shown(*, as_json: bool, quiet: bool) -> Iterator[Show]:
    """Show what it is given, and with JSON every event of the lake, while the block lasts."""
    if as_json:
        with subscribed(_print_event):
            yield lambda _: None
    elif quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        lines = Lines()
        yield lambda all_of_them: _say(lines.due(all_of_them, at=time.monotonic()))


class Lines:
    """Which pipelines are worth a line: those that moved since their last one, and not every second."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, LakeProgressed]] = {}

    def due(self, all_of_them: Sequence[LakeProgressed], *, at: float) -> list[str]:
        lines = []
        for now in all_of_them:
            told_at, told = self._told.get(now.pipeline, (float("-inf"), None))
            has_moved = told is None or (now.version, now.bad, now.state) != (told.version, told.bad, told.state)
            if has_moved and (at - told_at >= LINE_EVERY_S or (told is not None and now.state != told.state)):
                self._told[now.pipeline] = (at, now)
                lines.append(sentence(now))
        return lines


def sentence(now: LakeProgressed) -> str:
    bad = f", {now.bad:,} bad" if now.bad else ""
    version = "no version yet" if now.version < 0 else f"version {now.version}"
    return (
        f"{now.pipeline}: {now.state}, {version}, {now.rows:,} rows{bad}, {now.rows_per_second:,.0f} rows/s, "
        f"lag {now.lag_messages:,} messages, {now.lag_seconds:.1f} s"
    )


def _say(lines: list[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


@contextmanager
def _live() -> Iterator[Show]:
    from rich.live import Live

    from penstock.cli.output import console

    with Live(console=console(stderr=True), refresh_per_second=4, transient=False) as live:
        yield lambda all_of_them: live.update(_table(all_of_them))


def _table(all_of_them: Sequence[LakeProgressed]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("pipeline", "state", "version", "rows", "bad", "rows/s", "lag", "behind"):
        table.add_column(column, justify="left" if column in ("pipeline", "state") else "right")
    for now in all_of_them:
        table.add_row(
            now.pipeline,
            now.state,
            "-" if now.version < 0 else str(now.version),
            *(f"{number:,.0f}" for number in (now.rows, now.bad, now.rows_per_second, now.lag_messages)),
            f"{now.lag_seconds:.1f} s",
        )
    return table


def _print_event(event: Event) -> None:
    import msgspec

    from penstock.observe.logs import event_fields, event_name

    name = event_name(event)
    if type(event).__name__.startswith("Lake"):
        document = {"event": name, **event_fields(event)}
        click.echo(msgspec.json.encode(document, enc_hook=str).decode())
        sys.stdout.flush()
