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
@click.option("--every", metavar="DURATION", help="Run it once in every such period, however many machines ask.")
@click.option(
    "--delivery",
    type=click.Choice(["at_least_once", "at_most_once"]),
    default="at_least_once",
    show_default=True,
    help="With --every: whether a period whose command died with its machine is run again.",
)
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
    every: str | None,
    delivery: str,
    group: str,
    grace: str,
    quiet: bool,
) -> None:
    """Run COMMAND while holding the lock NAME.

    The command finds the fencing token in PENSTOCK_TOKEN: what it writes to should refuse a lower one than it has seen.
    If the lock is lost the command is stopped, and this exits with 1. Else the exit code is the command's.

    With --every it is a job: of all who ask in one period, by the clock of the broker, one runs the command, and the
    others exit with 0. Let the cron of every machine ask.
    """
    from penstock.claims.job import Job, Run
    from penstock.claims.lock import Lock
    from penstock.doctor.look import with_running_broker
    from penstock.values import duration

    settings = with_running_broker(settings)
    if not settings.kafka.bootstrap_servers:
        raise ConfigError("no Kafka is named", next_step="give -b HOST:PORT, or start one: `penstock broker start`")
    limit = int(settings.claims.heartbeat) / 1_000 if no_wait else wait
    codes: list[int] = []

    def run_job(run: Run) -> None:
        say(f"job {group}/{name} runs for {run.scheduled_for:%Y-%m-%d %H:%M:%S} UTC, token {run.token}", quiet=quiet)
        codes.append(_run(arguments, run.token, run.lost.is_set, grace_s=duration(grace).seconds))

    if every is not None:
        job = Job(settings, name, run_job, every=every, group=group, delivery=delivery)
        if job.run_if_due(timeout=limit) is None:
            say(f"job {group}/{name} was run in this period already", quiet=quiet)
        raise click.exceptions.Exit(sum(codes))
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
