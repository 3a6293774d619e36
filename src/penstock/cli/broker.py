"""`penstock broker`: start, stop and look at the embedded Apache Kafka."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options import loaded_config, setting_option
from penstock.cli.output import console, json_option, print_fields, print_json, print_table, quiet_option, say
from penstock.errors import BrokerFailed

if TYPE_CHECKING:
    from penstock.broker import Embedded
    from penstock.broker.jars import Fetching, Progress
    from penstock.broker.running import Running
    from penstock.settings import BrokerSettings

DEFAULT_PORT = 19_092

_data_option = setting_option(
    "broker.data",
    metavar="DIR",
    help="Where the broker keeps its data.  [default: penstock/broker in your state folder]",
)


@click.group()
def command() -> None:
    """Start, stop and look at the embedded Apache Kafka."""


@command.command()
@_data_option
@setting_option(
    "broker.port", type=int, metavar="N", help=f"On 127.0.0.1; 0 takes a free one.  [default: {DEFAULT_PORT}]"
)
@setting_option("broker.brokers", type=int, metavar="N", help="1, or 3 for a cluster (port, port + 1, port + 2).")
@setting_option("broker.heap_mb", type=int, metavar="MB", help="Java heap of each broker.  [default: 512]")
@click.option("--foreground", is_flag=True, help="Stay until Ctrl-C, then stop the broker.")
@json_option
@quiet_option
def start(*, foreground: bool, as_json: bool, quiet: bool) -> None:
    """Start Kafka and leave it running in the background; `penstock broker stop` ends it."""
    from penstock.broker import Embedded

    settings = _settings()
    began = time.monotonic()
    with progress_shown(quiet=quiet) as progress:
        kafka = Embedded(settings, outlives_us=not foreground, progress=progress)
        kafka.start()
    _print_started(kafka, time.monotonic() - began, as_json=as_json)
    if foreground:
        _stay(kafka, quiet=quiet)
    else:
        kafka.let_go()


@command.command()
@json_option
@quiet_option
def fetch(*, as_json: bool, quiet: bool) -> None:
    """Get everything that a broker needs (Java, jars), so that later starts need no network."""
    from penstock.broker.kit import prepare

    with progress_shown(quiet=quiet) as progress:
        kit = prepare(progress=progress)
    if as_json:
        print_json({"kafka": kit.release.version, "java": str(kit.java.version), "jars": len(kit.release.jars)})
    else:
        say(f"Apache Kafka {kit.release.version} is ready to start, on Java {kit.java.version}", quiet=quiet)


@command.command()
@_data_option
@json_option
@quiet_option
def stop(*, as_json: bool, quiet: bool) -> None:
    """Stop the broker that runs on this data. Exit code 3 if none does."""
    from penstock.broker.running import stop_on

    stopped = stop_on(_data_folder())
    if as_json:
        print_json({"stopped": True, "data": str(stopped.data), "pids": [pid for pid in stopped.pids.values() if pid]})
    else:
        say(f"stopped the broker on {stopped.data}", quiet=quiet)


@command.command()
@_data_option
@json_option
@click.pass_context
def status(context: click.Context, *, as_json: bool) -> None:
    """Say whether a broker runs on this data, and what it takes. Exit code 3 if none does."""
    from penstock.broker.running import running_on

    data = _data_folder()
    running = running_on(data)
    document = _described(data, running)
    if as_json:
        print_json(document)
    else:
        nodes = document.pop("nodes")
        print_fields({name: value for name, value in document.items() if value is not None})
        if isinstance(nodes, list) and len(nodes) > 1:
            print_table(list(nodes[0]), [list(node.values()) for node in nodes])
    if running is None:
        context.exit(3)


def _settings() -> BrokerSettings:
    """The configured settings, with this command's own defaults where nothing was said."""
    from penstock.broker.datafolder import cluster_at

    config = loaded_config(click.get_current_context())
    data = _folder(config.settings.broker)
    settings = replace(config.settings.broker, data=data)
    if "broker.port" not in config.origins:
        settings = replace(settings, port=DEFAULT_PORT)
    if "broker.brokers" not in config.origins and (cluster := cluster_at(data)):
        settings = replace(settings, brokers=cluster.brokers)
    return settings


def _data_folder() -> Path:
    return _folder(loaded_config(click.get_current_context()).settings.broker)


def _folder(settings: BrokerSettings) -> Path:
    from penstock.broker.running import default_data

    return (settings.data or default_data()).expanduser().absolute()


def _print_started(kafka: Embedded, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "bootstrap": kafka.bootstrap,
                "version": kafka.version,
                "data": str(kafka.data),
                "pids": [node.pid for node in kafka.nodes],
                "seconds": round(seconds, 2),
            }
        )
        return
    pids = ", ".join(str(node.pid) for node in kafka.nodes)
    click.echo(f"Apache Kafka {kafka.version} on {kafka.bootstrap}, pid {pids}, ready in {seconds:.1f} s")
    click.echo(f"data in {kafka.data}")


def _described(data: Path, running: Running | None) -> dict[str, object]:
    from penstock.broker.running import disk_mb, resident_mb

    pids = running.pids if running else {}
    memory = {number: resident_mb(pid) if pid else None for number, pid in pids.items()}
    return {
        "state": "running" if running else "stopped",
        "bootstrap": running.bootstrap if running else None,
        "version": running.version if running else None,
        "pid": next((pid for pid in pids.values() if pid), None),
        "memory_mb": round(sum(amount or 0 for amount in memory.values())) if running else None,
        "disk_mb": round(disk_mb(data), 1),
        "data": str(data),
        "nodes": [
            {
                "node": number,
                "state": "running" if pid else "stopped",
                "pid": pid,
                "memory_mb": round(memory[number] or 0),
            }
            for number, pid in pids.items()
        ],
    }


def _stay(kafka: Embedded, *, quiet: bool) -> None:
    """Until Ctrl-C or SIGTERM, which are the ordinary ends here.

    Raises BrokerFailed when a node ends before that.
    """
    ends: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: ends.append(received))
    with closing(kafka):
        say("Ctrl-C stops it", quiet=quiet)
        while not ends:
            for node in kafka.nodes:
                if not node.is_running:
                    raise BrokerFailed(f"node {node.number} of the broker ended", log_tail=node.log_tail(20))
            time.sleep(0.2)


@contextmanager
def progress_shown(*, quiet: bool, of: str = "Apache Kafka") -> Iterator[Progress | None]:
    """A bar on a terminal, a line now and then elsewhere; nothing if nothing has to be fetched."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(of) as progress:
            yield progress
    else:
        yield _lines(of)


@contextmanager
def _bar(of: str) -> Iterator[Progress]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"fetching {of}", visible=False)

        def show(fetching: Fetching) -> None:
            bar.update(task, visible=True, completed=fetching.bytes_done, total=fetching.bytes_total)

        yield show


def _lines(of: str) -> Progress:
    tenths_said = -1

    def show(fetching: Fetching) -> None:
        nonlocal tenths_said
        tenths = 10 * fetching.bytes_done // max(1, fetching.bytes_total)
        if tenths > tenths_said:
            tenths_said = tenths
            megabytes = f"{fetching.bytes_done / 1e6:.0f} of {fetching.bytes_total / 1e6:.0f} MB"
            say(f"fetching {of}: {megabytes}, {fetching.jars_done} of {fetching.jars_total} jars")

    return show
