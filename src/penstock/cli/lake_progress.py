"""How a run of the lake shows itself: a table that moves on a terminal, a line now and then elsewhere, or NDJSON."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from penstock.cli.output import print_event
from penstock.observe.events import Event, LakeProgressed, subscribed

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_S = 10.0

_LAST_LINES_S = 1.0
_CURSOR_AND_NEW_LINE = b"\x1b[?25h\r\n"

Show = Callable[[Sequence[LakeProgressed]], None]


@dataclass(frozen=True, slots=True)
class Screen:
    """Where a run shows itself."""

    show: Show = lambda _: None
    leave: Callable[[], None] = lambda: None
    """Leaves a terminal in order where the process ends at once, without the end of the block."""


@contextmanager
def shown(*, as_json: bool, quiet: bool) -> Iterator[Screen]:
    """Show what it is given, and with JSON every event of the lake, while the block lasts."""
    if as_json:
        with subscribed(_print_event):
            yield Screen()
    elif quiet:
        yield Screen()
    elif sys.stderr.isatty():
        with _live() as screen:
            yield screen
    else:
        lines = Lines()
        yield Screen(lambda all_of_them: _say(lines.due(all_of_them, at=time.monotonic())))


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
def _live() -> Iterator[Screen]:
    """A table at the bottom of the terminal; what Java and our logs say meanwhile goes above it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with os.fdopen(os.dup(2), "w") as terminal:
        console = Console(file=terminal, highlight=False, no_color="NO_COLOR" in os.environ, soft_wrap=True)
        live = Live(console=console, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False)
        with live, _others_tell(lambda line: console.print(Text(line))):
            yield Screen(
                lambda all_of_them: live.update(_table(all_of_them)),
                lambda: _write(terminal.fileno(), _CURSOR_AND_NEW_LINE),
            )


@contextmanager
def _others_tell(tell: Callable[[str], None]) -> Iterator[None]:
    """Hear what we and our children write to stderr while the block lasts; whoever wrote past us would tear the table.

    That Java's stdout is our stderr was seen to before.
    """
    numbers = (1, 2) if os.path.sameopenfile(1, 2) else (2,)
    reading, writing = os.pipe()
    kept = {number: os.dup(number) for number in numbers}
    for number in numbers:
        os.dup2(writing, number)
    os.close(writing)
    hearing = threading.Thread(target=_hear, args=(reading, tell), name="lake-others", daemon=True)
    hearing.start()
    try:
        yield
    finally:
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)
        # It ends with the last one who could write.
        hearing.join(_LAST_LINES_S)


def _hear(reading: int, tell: Callable[[str], None]) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(Exception):  # if nobody read on, Java would wait for it one day
                tell(line.rstrip("\n"))


def _write(number: int, text: bytes) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(number, text)


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
    if type(event).__name__.startswith("Lake"):
        print_event(event)
