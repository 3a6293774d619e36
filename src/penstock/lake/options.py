"""What one pipeline does: every option of `[lake.NAME]`, and of `Pipeline(...)` in Python, under the same names.

Options come as a mapping, from TOML or from keyword arguments, and leave as one frozen object. Whatever is unknown, has
the wrong form or does not fit together is a ConfigError that names the option and says what to write instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from penstock.errors import ConfigError, UsageError
from penstock.lake.option_forms import PLACES, StartingOffsets, Topics, form_of_option, placed
from penstock.schema import WRONG_FORM
from penstock.settings import Secret
from penstock.values import Duration, checked_name, duration

Format = Literal[
    "json", "json_registry", "avro", "avro_container", "avro_registry", "avro_single_object", "text", "bytes"
]
Compression = Literal["snappy", "zstd", "gzip", "lz4", "none"]
Payload = Literal["plain", "gzip", "zstd", "detect"]

ORIGIN = ("_topic", "_partition", "_offset", "_timestamp")
RESCUED = "_rescued"

AVRO = ("avro", "avro_container", "avro_registry", "avro_single_object")
REGISTRY = ("json_registry", "avro_registry")

# It would drop the stored offsets from the table, and with them everything that keeps rows from landing twice.
_FORBIDDEN_PROPERTIES = ("delta.settransactionretentionduration",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """How one pipeline lands the messages of its topics."""

    name: str
    """What the pipeline is called: the NAME of `[lake.NAME]`."""

    app_id: str
    """Under this name the table keeps the offsets. Never change it: a new one begins at the beginning."""

    topic: Topics
    """A topic, a list of them, or a pattern (a text with characters that no topic name has)."""

    table: str = ""
    """Where the Delta table is: a path or a URI. With `route`, the table of the messages that no route takes."""

    allowed_latency: Duration = duration("300s")
    """The longest that a message waits before it is landed."""

    max_messages_per_batch: int = 5_000
    """So many waiting messages start a batch."""

    max_offsets_per_trigger: int | None = None
    """No batch takes more messages than this."""

    min_bytes_per_file: int = 134_217_728
    """The size of data files that batches and compaction aim at."""

    consumer_group: str = ""
    """The group under which offsets are committed to Kafka for lag tools; empty is the app_id."""

    compression: Compression = "snappy"
    """How the columns in the data files are compressed."""

    starting_offsets: StartingOffsets = StartingOffsets()  # noqa: RUF009 - frozen
    """Where a table without stored offsets begins: earliest, latest, a point in time, or offsets by partition."""

    ends_at_latest_offsets: bool = False
    """Land what is there and end, instead of waiting for more."""

    format: Format = "json"
    """What a message's value is."""

    payload: Payload = "plain"
    """How values are compressed as a whole; `detect` looks at their first bytes."""

    payload_bytes_max: int = 16_777_216
    """A value that decompresses to more than this is a bad message."""

    columns: str = ""
    """The fields of a message and their types, as in CREATE TABLE: "id BIGINT NOT NULL, at TIMESTAMP"."""

    schema_file: Path | None = None
    """The same in a file: Spark's JSON of a schema, such a column list, or for Avro the schema (.avsc)."""

    schema: Literal["fixed", "evolve", "rescue"] = "fixed"
    """Fields that are not known: left out, added to the table as columns, or kept as JSON in `_rescued`."""

    infer_messages_max: int = 1_000
    """Without columns, file and table the schema is inferred once, from so many messages of the topic."""

    registry: str = ""
    """The address of the schema registry."""

    registry_subject: str = ""
    """The subject whose newest schema says what columns there are; empty is `<topic>-value`."""

    registry_user: str = ""
    """The user name for the registry, if it wants one."""

    registry_password: str = field(default="", repr=False)
    """The password that goes with it."""

    registry_timeout: Duration = duration("10s")
    """How long the registry may take to answer."""

    transforms: Mapping[str, str] = field(default_factory=dict)
    """Computed columns, by target: a Spark SQL expression over the message's fields and `kafka.*`, or a path."""

    metadata: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Columns with the same value in every row."""

    filter: str = ""
    """Only messages for which this Spark SQL condition is true are landed."""

    route: tuple[Mapping[str, Any], ...] = ()
    """Further tables: each with `table`, the `condition` of its messages, and what differs from the pipeline."""

    condition: str = ""
    """In a route: which messages its table takes."""

    origin_columns: bool = True
    """Whether rows carry `_topic, _partition, _offset, _timestamp`."""

    dead_letters: str = ""
    """Where the Delta table of bad messages is; without one a bad message stops the pipeline."""

    bad_messages: Literal["quarantine", "fail", "skip"] | None = None
    """What becomes of bad messages. Not given: quarantine with `dead_letters`, else fail."""

    dedup: tuple[str, ...] = ()
    """Columns that identify a message: within `dedup_within` only the first one is landed."""

    dedup_within: Duration = duration("1h")
    """How far apart two messages with the same id may be to count as the same."""

    partition_by: tuple[str, ...] = ()
    """Columns by which the table's files are in folders."""

    cluster_by: tuple[str, ...] = ()
    """Columns by which the table's files are clustered."""

    statistics: tuple[str, ...] = ()
    """The columns with statistics for skipping files; none are Delta's first 32."""

    table_properties: Mapping[str, str] = field(default_factory=dict)
    """Further properties for a table that is made."""

    checkpoint_every: int = 50
    """Versions of the table between two checkpoints of its log."""

    checkpoint: str = ""
    """Where Spark keeps its notes on the stream; empty is `_checkpoints/<app_id>` in the table."""

    maintenance: Duration | None = None
    """How often closed partitions are compacted and files that are no longer needed removed; none is never."""

    vacuum_after: Duration = duration("7d")
    """How long files that the table no longer needs stay for readers of old versions."""

    consumer: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further properties of the Kafka consumer in Spark, as Java's client calls them."""

    @classmethod
    def read(cls, name: str, given: Mapping[str, object], *, folder: Path | None = None) -> LakeOptions:
        """The options of the pipeline of this name. Relative places count from `folder`.

        Raises ConfigError for whatever is unknown, missing, of the wrong form, or does not fit together.
        """
        label = f"lake.{name}"
        values = _values(label, given, known=_pipeline_options(), folder=folder)
        for required in ("app_id", "topic"):
            if not values.get(required):
                raise _missing(label, required, name)
        if "table" not in values and "route" not in values:
            raise _missing(label, "table", name)
        options = cls(name=name, **values)
        options.landings()  # routes are read here too, so that a mistake in one shows at once
        return options

    def __post_init__(self) -> None:
        _check(self)

    @property
    def group(self) -> str:
        return self.consumer_group or self.app_id

    @property
    def on_bad_messages(self) -> Literal["quarantine", "fail", "skip"]:
        return self.bad_messages or ("quarantine" if self.dead_letters else "fail")

    @property
    def checkpoint_place(self) -> str:
        return self.checkpoint or f"{self.landings()[0].table}/_checkpoints/{self.app_id}"

    def landings(self) -> tuple[LakeOptions, ...]:
        """The same pipeline once per table, each with the table's own options and condition, and no route."""
        if not self.route:
            return (self,)
        routed = tuple(self._routed(index, one) for index, one in enumerate(self.route))
        if not self.table:
            return routed
        taken = " OR ".join(f"coalesce(({one.condition}), false)" for one in routed)
        return (*routed, replace(self, route=(), condition=f"NOT ({taken})"))

    def _routed(self, index: int, given: Mapping[str, Any]) -> LakeOptions:
        label = f"lake.{self.name}.route[{index}]"
        values = _values(label, given, known=_ROUTE_OPTIONS)
        for required, example in (("table", "lake/other"), ("condition", "kind = 'other'")):
            if not values.get(required):
                raise ConfigError(f"{label} has no {required}", next_step=f'give it {required} = "{example}"')
        return replace(self, route=(), **values)


# A route says which messages go where and how they look there; how they are read is the pipeline's business.
_ROUTE_OPTIONS = frozenset(
    (
        *("table", "condition", "columns", "schema_file", "schema", "transforms", "metadata", "origin_columns"),
        *("partition_by", "cluster_by", "statistics", "table_properties"),
    )
)


def _pipeline_options() -> frozenset[str]:
    return frozenset(field.name for field in fields(LakeOptions)) - {"name", "condition"}


def _values(
    label: str, given: Mapping[str, object], *, known: frozenset[str], folder: Path | None = None
) -> dict[str, Any]:
    hints = get_type_hints(LakeOptions)
    values = {}
    for option, value in given.items():
        if option not in known:
            raise _unknown(label, option, known)
        if value is None:
            continue
        form = form_of_option(option, hints[option])
        try:
            read = form.read(value)
        except WRONG_FORM:
            shown = "that value" if isinstance(value, Secret) else repr(value)
            raise ConfigError(
                f"{label}.{option}: {shown} is not the expected form", next_step=f"give {form.expected}"
            ) from None
        if isinstance(read, str) and isinstance(value, Secret):
            read = Secret(read)
        values[option] = placed(option, read, folder) if option in PLACES else read
    return values


def _unknown(label: str, option: str, known: Iterable[str]) -> ConfigError:
    meant = difflib.get_close_matches(option, sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean {meant[0]}?" if meant else f"known here: {', '.join(sorted(known))}"
    return ConfigError(f"{label}.{option} is no option", next_step=hint)


def _missing(label: str, option: str, name: str) -> ConfigError:
    example = {"app_id": name, "topic": name, "table": f"lake/{name}"}[option]
    return ConfigError(f"{label} has no {option}", next_step=f'give it one, such as {option} = "{example}"')


def _check(options: LakeOptions) -> None:
    label = f"lake.{options.name}"
    try:
        checked_name(f"{label}.app_id", options.app_id)
        if options.consumer_group:
            checked_name(f"{label}.consumer_group", options.consumer_group)
    except UsageError as problem:
        raise ConfigError(problem.what, next_step=problem.next_step) from None
    _check_bounds(label, options)
    for broken, what, next_step in _contradictions(options):
        if broken:
            raise ConfigError(f"{label}: {what}", next_step=next_step)


# The least and the most of every number; the bounds of Kafka's and Delta's own settings are within them.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "allowed_latency": (100, 7 * 86_400_000),
    "max_messages_per_batch": (1, 10**12),
    "max_offsets_per_trigger": (1, 10**12),
    "min_bytes_per_file": (1, 10**12),
    "payload_bytes_max": (1, 1_000_000_000),
    "infer_messages_max": (1, 1_000_000),
    "registry_timeout": (100, 600_000),
    "dedup_within": (1_000, 90 * 86_400_000),
    "checkpoint_every": (1, 100_000),
    "maintenance": (1_000, 90 * 86_400_000),
    "vacuum_after": (0, 3_650 * 86_400_000),
}


def _check_bounds(label: str, options: LakeOptions) -> None:
    for option, (least, most) in _BOUNDS.items():
        value = getattr(options, option)
        if value is not None and not least <= value <= most:
            kind = type(value) if isinstance(value, Duration) else int
            raise ConfigError(
                f"{label}.{option} {value} is out of bounds", next_step=f"use {kind(least)} to {kind(most)}"
            )


def _contradictions(options: LakeOptions) -> Iterable[tuple[bool, str, str]]:
    """What does not fit together: whether it is so, what, and what to do."""
    ceiling = options.max_offsets_per_trigger
    yield (
        ceiling is not None and ceiling < options.max_messages_per_batch,
        f"max_offsets_per_trigger {ceiling} is below max_messages_per_batch {options.max_messages_per_batch}",
        "make max_messages_per_batch smaller, or the ceiling higher",
    )
    yield (
        options.bad_messages == "quarantine" and not options.dead_letters,
        "bad_messages is quarantine, but there is no table for them",
        f'give dead_letters = "{options.table or "lake/" + options.name}-dead"',
    )
    yield (
        bool(options.columns and options.schema_file),
        "columns and schema_file both say what a message is",
        "keep one of them",
    )
    yield (
        options.format in ("avro", "avro_single_object", "avro_container") and options.schema_file is None,
        f"format {options.format} needs a schema",
        'give schema_file = "orders.avsc"',
    )
    yield (
        options.format == "avro_registry"
        and not (options.schema_file or options.registry_subject or options.topic.names),
        "with a topic pattern nothing says what columns there are",
        'give registry_subject = "orders-value", or the schema as schema_file',
    )
    yield (
        options.format in AVRO and bool(options.columns),
        f"columns do not describe {options.format}",
        'give the Avro schema as schema_file = "orders.avsc"',
    )
    yield (
        options.format in REGISTRY and not options.registry,
        f"format {options.format} needs a registry",
        'give registry = "http://host:8081"',
    )
    yield (
        bool(options.registry) and not options.registry.startswith(("http://", "https://")),
        f"registry {options.registry!r} is no address",
        'write it as "http://host:8081" or "https://host"',
    )
    yield (
        "@" in options.registry.removeprefix("https://").removeprefix("http://").split("/")[0],
        "the registry's address has a user name in it, which would show in logs",
        'give registry_user and registry_password = { env = "NAME" }',
    )
    yield (
        options.format in ("text", "bytes") and bool(options.columns or options.schema_file),
        f"format {options.format} has the one field `value` and no schema",
        "leave columns and schema_file out, and compute columns with transforms",
    )
    yield (
        options.schema != "fixed" and options.format not in ("json", "json_registry"),
        f"schema {options.schema} is for JSON; the fields of {options.format} are known",
        'use schema = "fixed"',
    )
    yield (
        bool(options.partition_by and options.cluster_by),
        "a table is either partitioned or clustered",
        "keep partition_by or cluster_by",
    )
    forbidden = [name for name in options.table_properties if name.lower() in _FORBIDDEN_PROPERTIES]
    yield (
        bool(forbidden),
        f"table_properties: {', '.join(forbidden)} would let the table forget its offsets",
        "leave it out: the offsets must stay as long as the table",
    )
    both = sorted({*options.transforms} & {*options.metadata})
    yield bool(both), f"{', '.join(both)} is in transforms and in metadata", "keep one of them"
    ours = {*ORIGIN} if options.origin_columns else set()
    taken = sorted(t for t in (*options.transforms, *options.metadata) if t in ours or t.startswith("__"))
    yield (
        bool(taken),
        f"{', '.join(taken)} is a name that Penstock uses itself",
        "choose another, or origin_columns = false",
    )
    yield (
        bool(options.dead_letters) and options.dead_letters == options.table,
        "dead_letters is the table itself",
        f'give another place, such as "{options.table}-dead"',
    )
