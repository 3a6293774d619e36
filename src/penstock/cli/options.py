"""Flags that many commands share. A flag for a setting carries the setting's own name, and goes through `config.load`.

@click.command()
@setting_option("broker.heap_mb", type=int, help="Java heap of each broker.")     # --heap-mb
@kafka_options                                                                    # --bootstrap-servers -X --config
def command(settings: Settings) -> None: ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from penstock.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])

_FLAGS = "penstock.flags"
_SPELLINGS = "penstock.flag-spellings"
_CONFIG = "penstock.config"
_FILE = "penstock.config-file"


def setting_option(setting: str, *spellings: str, **attributes: Any) -> Callable[[Command], Command]:
    """A flag for the setting of this dotted name; by its last part (`--heap-mb`) unless spelled otherwise."""
    flags = spellings or ("--" + setting.rpartition(".")[2].replace("_", "-"),)

    def remember(context: click.Context, _parameter: click.Parameter, value: object) -> None:
        if value is not None:
            context.meta.setdefault(_FLAGS, {})[setting] = value
            context.meta.setdefault(_SPELLINGS, {})[setting] = flags[0]

    return click.option(
        *flags, setting.replace(".", "_"), default=None, callback=remember, expose_value=False, **attributes
    )


def config_options(function: Command) -> Command:
    """Give the command a `config`: all settings and where each came from."""

    @functools.wraps(function)
    def with_config(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, config=loaded_config(click.get_current_context()), **named)

    decorated: Any = with_config
    for option in (_CONFIG_FILE, _PROPERTIES, _BOOTSTRAP):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def kafka_options(function: Command) -> Command:
    """Give the command `settings`, with the brokers and client properties that its flags name."""

    @functools.wraps(function)
    def with_settings(*arguments: Any, config: Config, **named: Any) -> Any:
        return function(*arguments, settings=config.settings, **named)

    return config_options(with_settings)  # type: ignore[return-value]


def loaded_config(context: click.Context) -> Config:
    """Load the settings with the flags that were given, once, and log as they say for the rest of the command."""
    if _CONFIG in context.meta:
        return context.meta[_CONFIG]  # type: ignore[no-any-return]
    from penstock.cli.logs import logging_to_stderr
    from penstock.config import load

    meta = context.meta
    config = load(meta.get(_FLAGS), spellings=meta.get(_SPELLINGS), file=meta.get(_FILE))
    context.with_resource(logging_to_stderr(config.settings.log))
    context.meta[_CONFIG] = config
    return config


def _remember_file(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        context.meta[_FILE] = value


def _remember_properties(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> None:
    properties = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            # Never the whole argument: what follows the sign may be a password.
            raise click.BadParameter(f"{name or '='!r} has no form key=value", context, parameter)
        properties[name.strip()] = value
    if properties:
        context.meta.setdefault(_FLAGS, {}).setdefault("kafka.client", {}).update(properties)


_BOOTSTRAP = setting_option(
    "kafka.bootstrap_servers", "--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="The Kafka to use."
)
_PROPERTIES = click.option(
    "-X",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_remember_properties,
    expose_value=False,
    help="A librdkafka property, as in -X security.protocol=SSL; may be repeated.",
)
_CONFIG_FILE = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_remember_file,
    expose_value=False,
    help="The file with the settings, instead of the nearest penstock.toml.",
)
