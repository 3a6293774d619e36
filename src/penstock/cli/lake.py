"""`penstock lake`: land topics in Delta tables, and look after them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.lake_spark import JARS, keep_stdout_from_java, late_spark, spark, started_session
from penstock.cli.options import config_options, kafka_options, setting_option
from penstock.cli.output import json_option, print_json, print_table, quiet_option, say
from penstock.errors import ConfigError, UsageError
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.lake.options import LakeOptions

Command = Callable[..., Any]


@click.group()
def command() -> None:
    """Land topics in Delta tables, exactly once.

    A pipeline NAME is a section [lake.NAME] of penstock.toml: a topic, a table, and what happens in between.
    """


def _common(function: Command) -> Command:
    """What every command has that works on pipelines."""
    master = setting_option("lake.master", metavar="URL", help="Where Spark runs.  [default: local[*]]")
    prefix = setting_option("topic_prefix", "--prefix", metavar="PREFIX", help="Stands before Penstock's own topics.")
    return master(prefix(json_option(function)))


# Running


@command.command()
@click.argument("name", required=False)
@click.option("--standby", is_flag=True, help="Wait while another process lands the same, and take over from it.")
@click.option("--once", is_flag=True, help="Land what is there now, and end.")
@click.option(
    "--grace", metavar="DURATION", default="30s", show_default=True, help="For the batches under way at a stop."
)
@click.option("--embedded", is_flag=True, help="On the embedded broker of this machine, started if it is not running.")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve /metrics, /healthz and /readyz there.")
@_common
@quiet_option
@config_options
def run(
    config: Config,
    *,
    name: str | None,
    standby: bool,
    once: bool,
    grace: str,
    embedded: bool,
    metrics_port: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Land the pipeline NAME, or all of them in one Spark, until SIGTERM or Ctrl-C.

    One that fails does not stop the others; at the end it is named, and the exit code is not 0. While another process
    lands the same pipeline, or in the same table, this exits with 6, or waits with --standby. A stop lets the batch
    under way end, or abandons it after the time of grace; a second signal ends at once.

    With --json what happens is printed as NDJSON.
    """
    from penstock.cli.lake_progress import shown
    from penstock.cli.work import embedded_broker
    from penstock.lake.serving import serve
    from penstock.values import duration

    settings = config.settings
    pipelines = [replace(each, ends_at_latest_offsets=True) if once else each for each in chosen(settings, name)]
    if embedded and settings.kafka.bootstrap_servers:
        raise UsageError(
            f"--embedded, but {settings.kafka.bootstrap_servers} is named as well", next_step="leave one out"
        )
    if not embedded:
        _need_broker(settings)
    _log_what_happens(config, quiet=quiet or as_json or sys.stderr.isatty())
    keep_stdout_from_java()
    with embedded_broker(config, quiet=quiet) if embedded else nullcontext(None) as bootstrap:
        if bootstrap is not None:
            settings = replace(settings, kafka=replace(settings.kafka, bootstrap_servers=bootstrap))
        with shown(as_json=as_json, quiet=quiet) as screen:
            failure = serve(
                settings,
                pipelines,
                start_session=lambda: started_session(settings, quiet=True),
                is_standby=standby,
                grace=duration(grace),
                show=screen.show,
                leave=screen.leave,
                metrics_port=metrics_port,
            )
    if failure is not None:
        raise failure


# Looking


@command.command()
@click.argument("name", required=False)
@click.option(
    "--count", is_flag=True, help="Count rows with Spark where the table's log does not say how many there are."
)
@_common
@kafka_options
def status(settings: Settings, *, name: str | None, count: bool, as_json: bool) -> None:
    """Say what the tables hold, how far behind the topics they are, and which process lands them.

    On a disk this reads the tables' logs and needs no Spark; elsewhere it starts one.
    """
    from penstock.cli.lake_view import status_document, status_row

    now_ms = time.time_ns() // 1_000_000
    found = _statuses(settings, name, with_rows=count)
    if as_json:
        print_json({"pipelines": [status_document(each, now_ms) for each in found]})
        return
    columns = ["pipeline", "table", "version", "rows", "files", "size", "mean file", "dead", "lag", "behind", "run by"]
    print_table(columns, [row for each in found for row in status_row(each, now_ms)])


@command.command()
@click.argument("name", required=False)
@_common
@kafka_options
def offsets(settings: Settings, *, name: str | None, as_json: bool) -> None:
    """Compare the offsets in the tables with the ends of the topics, partition by partition."""
    from penstock.cli.lake_view import offset_document, offset_row

    now_ms = time.time_ns() // 1_000_000
    found = _statuses(settings, name, with_rows=False)
    if as_json:
        lags = [offset_document(each, lag, now_ms) for each in found for lag in each.lags]
        print_json({"partitions": lags, "lag_messages": sum(each.lag_messages for each in found)})
        return
    columns = ["pipeline", "partition", "stored", "next", "end", "lag", "behind"]
    print_table(columns, [offset_row(each, lag, now_ms) for each in found for lag in each.lags])


# Looking after


@command.command()
@click.argument("name", required=False)
@click.option(
    "--closed-after",
    metavar="DURATION",
    help="A partition of the table is closed when nothing was landed in it for so long.  [default: maintenance, or 1h]",
)
@_common
@quiet_option
@kafka_options
def maintain(settings: Settings, *, name: str | None, closed_after: str | None, as_json: bool, quiet: bool) -> None:
    """Compact the small files of closed partitions, and remove files that nobody needs any more.

    Refused (exit 6) while a pipeline is at work: beside it, its option maintenance = "1h" does the same.
    """
    from penstock.lake.maintenance import CLOSED_AFTER, maintain, tell_of
    from penstock.lake.operating import alone_with
    from penstock.values import duration

    settings, pipelines = _reached(settings), chosen(settings, name)
    busy = 'stop it first, or set its option maintenance = "1h": the run does it then itself'
    done = []
    with alone_with(settings, *pipelines, next_step=busy), spark(settings, quiet=quiet) as session:
        for options in pipelines:
            after = duration(closed_after) if closed_after else options.maintenance or CLOSED_AFTER
            for each in maintain(session, options, closed_after=after, beside_landing=False):
                tell_of(options.name, each)
                done.append((options.name, each))
    if as_json:
        print_json({"tables": [{"pipeline": name, **_fields(each)} for name, each in done]})
        return
    columns = ["pipeline", "table", "compacted", "into", "removed", "took"]
    rows = [
        (name, one.table, one.files_compacted, one.files_written, one.files_removed, f"{one.seconds:.1f} s")
        for name, one in done
    ]
    print_table(columns, rows)


@command.command()
@click.argument("name")
@click.option("--to-version", type=click.IntRange(0), help="Rows and offsets go back to those of this version.")
@click.option("--to-offsets", metavar="P=OFFSET,...", help="The next offset of partitions; rows stay as they are.")
@click.option("--table", metavar="PLACE", help="Which of the pipeline's tables, where it lands in several.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_common
@quiet_option
@kafka_options
def rewind(
    settings: Settings,
    *,
    name: str,
    to_version: int | None,
    to_offsets: str | None,
    table: str | None,
    yes: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Set the table of NAME back to an older version, or its offsets to others.

    After --to-version what was landed since is landed again. With --to-offsets messages may be left out for ever; it
    never goes back behind a row that the table has. Refused (exit 6) while the pipeline is at work.
    """
    from penstock.lake.operating import alone_with
    from penstock.lake.rewind import chosen_table, rewind_to_offsets, rewind_to_version

    if (to_version is None) == (to_offsets is None):
        raise UsageError("a rewind needs a place to go to", next_step="give --to-version N or --to-offsets 0=123")
    wanted = {} if to_offsets is None else parsed_offsets(to_offsets)
    settings, (options,) = _reached(settings), chosen(settings, name)
    place = chosen_table(options, table)
    where = f"version {to_version}" if to_version is not None else f"the offsets {to_offsets}"
    _confirm(f"Set {place} to {where}?", yes=yes)
    with (
        alone_with(settings, options, next_step="stop it first: a table is rewound while nobody lands in it"),
        spark(settings, quiet=quiet) as session,
    ):
        if to_version is not None:
            done = rewind_to_version(session, settings, options, place=place, version=to_version)
        else:
            done = rewind_to_offsets(session, settings, options, place=place, wanted=wanted)
    if as_json:
        following = [{"topic": t, "partition": p, "next_offset": o} for (t, p), o in sorted(done.next_offsets.items())]
        document = {"table": done.table, "version": done.version, "replay_undone": done.replay_undone}
        print_json({**document, "partitions": following})
        return
    say(f"{done.table} is at {where}, as version {done.version}; `penstock lake run {name}` goes on from there")
    if done.replay_undone:
        say("dead letters were replayed into it since, and their rows are gone again. An older version has them:")
        say(f"RESTORE TABLE delta.`{options.dead_letters}` to it, then `penstock lake replay-dead {name}`")


@command.command("replay-dead")
@click.argument("name")
@click.option("--where", metavar="SQL", default="", help="""Only these, as in "error LIKE 'amount%'".""")
@_common
@quiet_option
@kafka_options
def replay_dead(settings: Settings, *, name: str, where: str, as_json: bool, quiet: bool) -> None:
    """Land the dead letters of NAME that are good by now, each once; the others stay where they are.

    They are read again as the options say now. Refused (exit 6) while the pipeline is at work.
    """
    from penstock.lake.operating import alone_with
    from penstock.lake.replay_dead import replay_dead

    settings, (options,) = _reached(settings), chosen(settings, name)
    with (
        alone_with(settings, options, next_step="stop it first: dead letters are replayed while nobody lands"),
        spark(settings, quiet=quiet) as session,
    ):
        done = replay_dead(session, settings, options, where=where)
    if as_json:
        print_json(_fields(done))
        return
    say(f"{done.messages:,} dead letters were landed as {done.rows:,} rows; {done.still_bad:,} are still bad")
    if done.finished:
        say(f"{done.finished:,} rows more are from a replay that had not come to its end")


@command.command()
@json_option
@quiet_option
def fetch(*, as_json: bool, quiet: bool) -> None:
    """Get the jars that Spark needs, so that later starts need no network."""
    from penstock.cli.broker import progress_shown
    from penstock.lake.jars import lake_jars

    with progress_shown(quiet=quiet, of=JARS) as progress:
        jars = lake_jars(progress=progress)
    if as_json:
        print_json({"jars": len(jars)})
    else:
        say(f"the {len(jars)} jars of the lake are here", quiet=quiet)


# Inside


def chosen(settings: Settings, name: str | None) -> list[LakeOptions]:
    """The pipeline of this name, or all. Raises NotFound, ConfigError."""
    from penstock.lake.configured import pipelines_of

    return pipelines_of(settings.lake, name)


def parsed_offsets(text: str) -> dict[int, int]:
    """Read "0=123,1=456", or the same as JSON. Raises UsageError."""
    try:
        pairs = json.loads(text).items() if text.lstrip().startswith("{") else _pairs(text)
        read = {int(partition): int(offset) for partition, offset in pairs}
        if not read or min(*read.keys(), *read.values()) < 0:
            raise ValueError
    except (ValueError, AttributeError, TypeError):
        raise UsageError(f"{text!r} are no offsets", next_step="write --to-offsets 0=123,1=456") from None
    return read


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [one.partition("=") for one in text.split(",")]
    return [(partition, offset) for partition, _, offset in pairs]


def _statuses(settings: Settings, name: str | None, *, with_rows: bool) -> list[Any]:
    from penstock.lake.status import holders, status_of

    settings, pipelines = _reached(settings), chosen(settings, name)
    running = holders(settings, [options.app_id for options in pipelines])
    with late_spark(settings) as session:
        found = [
            status_of(settings, options, session=session, holders=running, with_rows=with_rows) for options in pipelines
        ]
    for each in found:
        if each.problem:
            say(f"{each.options.name}: {each.problem}")
    return found


def _reached(settings: Settings) -> Settings:
    from penstock.cli.claims import reached

    return reached(settings)


def _need_broker(settings: Settings) -> None:
    if not settings.kafka.bootstrap_servers:
        raise ConfigError(
            "no Kafka is named",
            next_step="give -b HOST:PORT, set [kafka] bootstrap_servers, or add --embedded for one on this machine",
        )


def _log_what_happens(config: Config, *, quiet: bool) -> None:
    """A run lasts for weeks: unless somebody says otherwise, or watches it, it tells what happens to its pipelines."""
    import logging

    if not quiet and "log.level" not in config.origins:
        logging.getLogger("penstock").setLevel(logging.INFO)


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this cannot be undone, and there is no terminal to ask on", next_step="add --yes")
    click.confirm(question, abort=True, err=True)


def _fields(value: Any) -> Mapping[str, object]:
    from dataclasses import asdict

    return asdict(value)
