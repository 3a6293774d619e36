"""`penstock upgrade`: switch a newer ledger protocol on, when every process speaks it."""

from __future__ import annotations

import getpass

import click

from penstock.cli.options import kafka_options
from penstock.cli.output import json_option, print_json, say
from penstock.errors import Refused
from penstock.settings import Settings
from penstock.topics import ledgers as all_ledgers

PROTOCOL_VERSION = 1
"""The newest ledger protocol that this Penstock speaks."""


@click.command()
@click.argument("ledgers", nargs=-1, metavar="[LEDGER]...")
@click.option(
    "--to", "version", type=int, default=PROTOCOL_VERSION, show_default=True, help="The version to switch on."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@kafka_options
def command(settings: Settings, *, ledgers: tuple[str, ...], version: int, yes: bool, as_json: bool) -> None:
    """Switch a newer ledger protocol on in LEDGERs (default: all that are configured).

    Roll the new Penstock out first, then run this. Processes that do not speak the version stop at this point of the
    log, so nothing is misread; there is no way back.
    """
    names = ledgers or tuple(settings.topic_prefix + name for name in all_ledgers(settings))
    if version > PROTOCOL_VERSION:
        raise Refused(
            f"this Penstock speaks protocol version {PROTOCOL_VERSION}, not {version}",
            next_step="install the Penstock that does, everywhere, then run this again",
        )
    if not yes:
        click.confirm(f"Switch version {version} on in {', '.join(names)}? It never goes down.", abort=True, err=True)
    _raise_all(settings, names, version)
    if as_json:
        print_json({"ledgers": list(names), "version": version})
    else:
        say(f"version {version} is on in {', '.join(names)}")


def _raise_all(settings: Settings, names: tuple[str, ...], version: int) -> None:
    from penstock.ledger.operator import raise_version

    for name in names:
        raise_version(settings, name, version=version, by=getpass.getuser())
