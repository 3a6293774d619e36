"""`penstock config show`: every setting, its value, and where that came from."""

from __future__ import annotations

import click

from penstock.cli.descriptions import description_of
from penstock.cli.options import config_options
from penstock.cli.output import json_option, print_json, print_table, say
from penstock.config import Config, Shown, env_name
from penstock.settings import Settings


@click.group()
def command() -> None:
    """Show every setting and where it came from."""


@command.command()
@click.option("--origin", is_flag=True, help="Also say where each value came from.")
@json_option
@config_options
def show(config: Config, *, origin: bool, as_json: bool) -> None:
    """Print every setting; secrets are masked.

    A setting comes from a flag, else from a PENSTOCK_ variable, else from penstock.toml or [tool.penstock] in
    pyproject.toml, else it is the default.
    """
    shown = config.shown()
    if as_json:
        print_json({"file": str(config.file) if config.file else None, "settings": [_document(one) for one in shown]})
        return
    columns = ["setting", "value", *(["origin"] if origin else []), "meaning"]
    print_table(columns, [_row(one, origin=origin) for one in shown])
    if origin and config.file is None:
        say("no penstock.toml and no [tool.penstock] was found here or above")


def _document(one: Shown) -> dict[str, object]:
    return {
        "name": one.name,
        "value": one.value,
        "origin": one.origin.kind,
        "where": one.origin.where,
        "env": env_name(one.path),
        "description": description_of(Settings, one.path),
    }


def _row(one: Shown, *, origin: bool) -> list[str]:
    return [one.name, one.value, *([str(one.origin)] if origin else []), description_of(Settings, one.path)]
