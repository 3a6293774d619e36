"""`penstock work MODULE:APP`: processes that handle an application's queues, supervised."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options import config_options, setting_option
from penstock.cli.output import json_option, print_event, quiet_option, say
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.config import Config

_UNITS_MB = {"KB": 1e-3, "MB": 1.0, "GB": 1e3, "KIB": 1024 / 1e6, "MIB": 1024**2 / 1e6, "GIB": 1024**3 / 1e6}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")
_PORT_MAX = 65_535


def megabytes(text: str) -> float:
    """Read "500MB" or "1.5GiB". Raises UsageError on anything else."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS_MB.get(found[2].upper()) if found else None
    if found is None or unit is None or not float(found[1]):
        raise UsageError(f"{text!r} is no amount of memory", next_step='write "500MB", "1.5GB" or "512MiB"')
    return float(found[1]) * unit


def metrics_ports(first: int | None, processes: int) -> list[int | None]:
    """Of each process: one after the other, or 0, which is any that is free. Raises UsageError if there is no room."""
    if not first:
        return [first] * processes
    if first + processes - 1 > _PORT_MAX:
        raise UsageError(
            f"{processes} processes have no ports of their own from {first} on",
            next_step=f"choose a --metrics-port up to {_PORT_MAX + 1 - processes}",
        )
    return [*range(first, first + processes)]


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--processes", type=click.IntRange(1, 500), default=1, show_default=True, help="How many, on one app.")
@click.option("--reload", is_flag=True, help="Replace them when a .py file of the code changes: for development.")
@click.option(
    "--max-memory",
    metavar="SIZE",
    help='Above this, as in "500MB", a process is drained and replaced.  [default: no limit]',
)
@click.option("--grace", metavar="DURATION", default="30s", show_default=True, help="From SIGTERM to SIGKILL.")
@click.option("--embedded", is_flag=True, help="On the embedded broker of this machine, started if it is not running.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, _PORT_MAX),
    help="Serve /metrics, /healthz and /readyz there; each further process on the port behind it.",
)
@setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before the name of every topic.")
@json_option
@quiet_option
@config_options
def command(
    config: Config,
    *,
    target: str,
    processes: int,
    reload: bool,
    max_memory: str | None,
    grace: str,
    embedded: bool,
    metrics_port: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Handle the queues of APP, which is a penstock.App in MODULE, until SIGTERM or Ctrl-C.

    A process that dies is started again, with a back-off that doubles from 0.5 s to 30 s. SIGTERM or Ctrl-C drains:
    what is being handled has the time of grace to end, the rest is given back at once. A second Ctrl-C ends at once.

    Exit code 0 after a clean stop, 1 if a process had to be killed or none comes to work, 2 if there is nothing to run.

    With --json what happens to the processes is printed as NDJSON, and what they print goes to stderr.
    """
    from penstock.broker.running import resident_mb
    from penstock.cli.loading import split_target
    from penstock.observe.events import subscribed
    from penstock.observe.serving import check_port
    from penstock.queue.supervise import Supervisor, Terms, Tools
    from penstock.values import duration

    module, _ = split_target(target)
    terms = Terms(
        processes=processes,
        grace=duration(grace),
        memory_max_mb=None if max_memory is None else megabytes(max_memory),
    )
    if embedded and config.settings.kafka.bootstrap_servers:
        raise UsageError(
            f"--embedded, but {config.settings.kafka.bootstrap_servers} is named as well", next_step="leave one out"
        )
    ports = metrics_ports(metrics_port, processes)
    for port in filter(None, ports):
        check_port(port)
    _log_what_happens(config, quiet=quiet)
    with embedded_broker(config, quiet=quiet) if embedded else nullcontext(None) as bootstrap:
        tools = Tools(
            command=lambda number, line: _child(target, line, int(terms.grace), ports[number - 1]),
            environ=lambda number: _environ(config, number, bootstrap),
            stdout=sys.stderr.fileno() if as_json else None,
            resident_mb=resident_mb,
            changed_file=_watch(module) if reload else None,
        )
        with subscribed(print_event) if as_json else nullcontext():
            code = Supervisor(terms, tools).run()
    if code == UsageError.exit_code and not (bootstrap or config.settings.kafka.bootstrap_servers):
        say("       or give -b HOST:PORT, or --embedded for a broker on this machine")
    raise click.exceptions.Exit(code)


def _child(target: str, line: int, grace_ms: int, metrics_port: int | None) -> list[str]:
    more = [] if metrics_port is None else [str(metrics_port)]
    return [sys.executable, "-m", "penstock.cli.work_child", target, str(line), str(grace_ms), *more]


def _log_what_happens(config: Config, *, quiet: bool) -> None:
    """A worker runs for weeks: unless somebody says otherwise it tells what happens to its processes."""
    if not quiet and "log.level" not in config.origins:
        logging.getLogger("penstock").setLevel(logging.INFO)


def _environ(config: Config, number: int, bootstrap: str | None) -> dict[str, str]:
    """The children load the settings by themselves: our flags reach them as variables."""
    from penstock.schema import env_name, spelled, values_of

    environ = dict(os.environ)
    for path, value in values_of(config.settings):
        origin = config.origins.get(spelled(path))
        if origin is not None and origin.kind == "flag":
            environ[env_name(path)] = str(value)
    if config.file is not None:
        environ["PENSTOCK_CONFIG"] = str(config.file.absolute())
    if config.settings.claims.client:
        # Living members of a group must have names of their own.
        environ[env_name(("claims", "client"))] = f"{config.settings.claims.client}-{number}"
    if bootstrap is not None:
        environ[env_name(("kafka", "bootstrap_servers"))] = bootstrap
    return environ


@contextmanager
def embedded_broker(config: Config, *, quiet: bool) -> Iterator[str]:
    """The embedded broker that runs, else one for as long as we do."""
    from penstock.broker import Embedded
    from penstock.broker.running import default_data
    from penstock.cli.broker import progress_shown
    from penstock.doctor.look import with_running_broker

    running = with_running_broker(config.settings).kafka.bootstrap_servers
    if running:
        say(f"on the embedded broker {running}", quiet=quiet)
        yield running
        return
    # Where other commands look for it.
    settings = replace(config.settings.broker, data=config.settings.broker.data or default_data())
    with progress_shown(quiet=quiet) as progress:
        kafka = Embedded(settings, progress=progress)
        kafka.start()
    with closing(kafka):
        say(f"on an embedded broker {kafka.bootstrap}, until this ends", quiet=quiet)
        yield kafka.bootstrap


def _watch(module: str) -> Callable[[], str | None]:
    from penstock.cli.watching import Watch, folders_of

    return Watch(folders_of(module, Path.cwd())).changed
