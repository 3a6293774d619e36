"""`penstock lock NAME -- COMMAND`: run a command while holding a lock, and stop it when the lock is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import click

from penstock.cli.options import kafka_options
from penstock.cli.output import quiet_option, say
from penstock.errors import ConfigError, Fenced, NotFound
from penstock.settings import Settings

LOOK_EVERY_S = 0.1


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
@click.option("--wait", metavar="DURATION", help="How long to wait for the lock.  [default: as long as it takes]")
@click.option("--no-wait", is_flag=True, help="Exit with 6 at once if somebody else holds it.")
@click.option("--group", default="penstock", show_default=True, help="Locks of other groups have other names.")
@click.option("--grace", metavar="DURATION", default="10s", show_default=True, help="From SIGTERM to SIGKILL.")
@quiet_option
@kafka_options
def command(
    settings: Settings,
    *,
    name: str,
    arguments: tuple[str, ...],
    wait: str | None,
    no_wait: bool,
    group: str,
    grace: str,
    quiet: bool,
) -> None:
    """Run COMMAND while holding the lock NAME.

    The command finds the fencing token in PENSTOCK_TOKEN: what it writes to should refuse a lower one than it has seen.
    If the lock is lost the command is stopped, and this exits with 1. Else the exit code is the command's.
    """
    from penstock.claims.lock import Lock
    from penstock.doctor.look import with_running_broker
    from penstock.values import duration

    settings = with_running_broker(settings)
    if not settings.kafka.bootstrap_servers:
        raise ConfigError("no Kafka is named", next_step="give -b HOST:PORT, or start one: `penstock broker start`")
    limit = int(settings.claims.heartbeat) / 1_000 if no_wait else wait
    with Lock(settings, name, group=group, timeout=limit) as lock:
        say(f"lock {lock.slot} is held, token {lock.token}", quiet=quiet)
        code = _run(arguments, lock.token, lock.lost.is_set, grace_s=duration(grace).seconds)
        if lock.lost.is_set():
            raise Fenced(
                f"lock {lock.slot} was lost, the command was stopped", next_step="start it again when it is free"
            )
    raise click.exceptions.Exit(code)


def _run(arguments: tuple[str, ...], token: int, is_lost: Callable[[], bool], *, grace_s: float) -> int:
    try:
        child = subprocess.Popen(arguments, env={**os.environ, "PENSTOCK_TOKEN": str(token)})
    except FileNotFoundError as problem:
        raise NotFound(f"there is no command {arguments[0]!r}", next_step="check its name and PATH") from problem
    try:
        while child.poll() is None:
            if is_lost():
                break
            time.sleep(LOOK_EVERY_S)
    finally:
        _end(child, grace_s)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
