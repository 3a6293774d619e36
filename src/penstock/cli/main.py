"""The `penstock` command: finds the subcommand, turns errors into messages and exit codes."""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Sequence

import click

from penstock import __version__
from penstock.cli.options import setting_option
from penstock.errors import PenstockError, UsageError

_SUBCOMMANDS = {
    "bench": ("penstock.cli.bench", "Measure Penstock side by side with the bare client."),
    "broker": ("penstock.cli.broker", "Start, stop and look at the embedded Apache Kafka."),
    "claims": ("penstock.cli.claims", "Who owns what, and why; pause, resume and reset a group."),
    "config": ("penstock.cli.config", "Show every setting and where it came from."),
    "demo": ("penstock.cli.demo", "Tell the whole story on an embedded broker."),
    "doctor": ("penstock.cli.doctor", "Check this machine, the broker and the topics."),
    "lake": ("penstock.cli.lake", "Land topics in Delta tables, and look after them."),
    "lock": ("penstock.cli.lock", "Run a command while holding a named lock."),
    "queue": ("penstock.cli.queue", "Why was this redelivered? Dump and replay a queue's ledger."),
    "peek": ("penstock.cli.peek", "Look at a queue's messages by their state, without taking them."),
    "queues": ("penstock.cli.queues", "How many messages are ready, leased, waiting and dead, for each queue."),
    "send": ("penstock.cli.send", "Send messages to a queue."),
    "topics": ("penstock.cli.topics", "Plan and make the topics that Penstock needs."),
    "upgrade": ("penstock.cli.upgrade", "Switch a newer ledger protocol on."),
    "work": ("penstock.cli.work", "Handle the queues of an application, in supervised processes."),
}


class _LateGroup(click.Group):
    """Knows the names and one-line helps of its commands without importing them: --help stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _SUBCOMMANDS:
            return None
        command = importlib.import_module(_SUBCOMMANDS[name][0]).command
        assert isinstance(command, click.Command)  # narrows the type
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _SUBCOMMANDS and not name.startswith("-"):
            meant = difflib.get_close_matches(name, _SUBCOMMANDS, n=1)
            hint = f"did you mean penstock {meant[0]}?" if meant else "penstock --help lists the commands"
            raise UsageError(f"there is no command {name!r}", next_step=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # `| head`: that is not our failure. Click would call it one.
            from penstock.cli.output import print_no_more

            print_no_more()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _SUBCOMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
@setting_option("log.level", "--log-level", metavar="LEVEL", help="debug, info, warning or error; warning by default.")
@setting_option("log.format", "--log-format", metavar="FORMAT", help="text (the default) or json; logs go to stderr.")
def penstock() -> None:
    """Work done once, on the Kafka you already run.

    Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 no such thing,
    4 broker unreachable, 5 check not met, 6 refused, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    # Ended by SIGTERM, a command closes what it has open as after Ctrl-C: brokers, locks, commands under a lock.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = penstock.main(args=arguments, prog_name="penstock", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except PenstockError as problem:
        click.echo(f"error: {problem.what}", err=True)
        if problem.next_step:
            click.echo(f"next:  {problem.next_step}", err=True)
        sys.exit(problem.exit_code)
