"""What can be set, one frozen object per component. `config.py` fills them; everything has a bound and a default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError, UsageError
from penstock.values import Duration, checked_name, duration

MASK = "********"

# The client takes no record of more than 1 GB in all.
SEND_BYTES_MAX = 300_000_000

_SECRET_WORDS = (
    "password",
    "secret",
    "token",
    "key.pem",
    "private.key",
    "sasl.jaas",
    "credential",
    "oauthbearer.config",
)


def is_secret(name: str) -> bool:
    """Whether a setting of this name must never be shown."""
    lowered = name.lower().replace("_", ".")
    return any(word in lowered for word in _SECRET_WORDS)


class Secret(str):
    """A value that was declared or is known to be secret: it never shows in a repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


def masked(properties: Mapping[str, object]) -> dict[str, object]:
    return {name: MASK if is_secret(name) else value for name, value in properties.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """How to reach Kafka."""

    bootstrap_servers: str = ""
    """Comma-separated host:port list; empty means the embedded broker, for commands that allow it."""

    client: Mapping[str, str] = field(default_factory=dict)
    """Any further librdkafka properties (TLS, SASL, buffers), passed to every client as they are."""

    request_timeout: Duration = duration("30s")
    """How long one administrative call may take."""

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap_servers={self.bootstrap_servers!r}, client={masked(self.client)!r})"

    def __post_init__(self) -> None:
        if self.request_timeout < 100:
            raise ConfigError(
                f"kafka.request_timeout {self.request_timeout} is too short", next_step="give 100ms or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The embedded Apache Kafka."""

    data: Path | None = None
    """Where the broker keeps its log; none means a temporary folder, removed at the end."""

    port: int = 0
    """The port on 127.0.0.1; 0 takes a free one."""

    brokers: int = 1
    """1, or 3 for a cluster with replication on one machine."""

    heap_mb: int = 512
    """Java heap of each broker."""

    start_timeout: Duration = duration("90s")
    """How long a broker may take to answer before it is given up."""

    def __post_init__(self) -> None:
        if self.brokers not in (1, 3):
            raise ConfigError(
                f"broker.brokers is {self.brokers}", next_step="use 1, or 3 for a cluster on this machine"
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"broker.port {self.port} is no port", next_step="use 0 (any free one) to 65535")
        if self.heap_mb < 128:
            raise ConfigError(f"broker.heap_mb {self.heap_mb} is too small for Kafka", next_step="use 256 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """One ledger topic of your own, for machines that you write yourself."""

    partitions: int = 8
    """How many partitions the ledger topic has; fixed once it is made."""

    snapshot_every: int = 100_000
    """Records between two snapshots of a partition's state."""

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= 10_000:
            raise ConfigError(f"ledger partitions {self.partitions} is out of bounds", next_step="use 1 to 10000")
        if self.snapshot_every < 1:
            raise ConfigError(f"snapshot_every {self.snapshot_every} is out of bounds", next_step="use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsSettings:
    """Coordination: all members of all groups that share one coordination ledger must agree on these."""

    topic: str = "penstock.claims"
    """The coordination ledger; `topic_prefix` goes before it."""

    partitions: int = 8
    """How many partitions the coordination ledger has; where a slot lives depends on it, so it is fixed once made."""

    heartbeat: Duration = duration("2s")
    """The unit of time (HB): members send three heartbeats in it, and an owner expires after two of it in silence."""

    window: int = 1_000_000
    """How many offsets claimed ranges of a partition may run ahead of its position."""

    delivery_limit: int = 5
    """How often a message of a shared partition may be charged with a failure before it is buried."""

    snapshot_every: int = 100_000
    """Records between two snapshots of a coordination partition."""

    client: str = ""
    """How this process is called among the members; it must differ between living ones. Empty: <host>-<ordinal>."""

    give_up_lag: int = 10_000
    """How many records a partition must be behind, and fall further behind, before its owner gives it up to a member
    that keeps up; 0 is never."""

    def __post_init__(self) -> None:
        checked_name("claims topic", self.topic)
        if self.client:
            checked_name("claims client", self.client)
        if self.give_up_lag < 0:
            raise ConfigError(f"claims give_up_lag {self.give_up_lag} is out of bounds", next_step="use 0 or more")
        if not 1 <= self.partitions <= 10_000:
            raise ConfigError(f"claims partitions {self.partitions} is out of bounds", next_step="use 1 to 10000")
        if not 100 <= self.heartbeat <= 3_600_000:
            raise ConfigError(f"claims heartbeat {self.heartbeat} is out of bounds", next_step='use "100ms" to "1h"')
        for name in ("window", "delivery_limit", "snapshot_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"claims {name} {getattr(self, name)} is out of bounds", next_step="use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """What may be sent to a queue, and how long a send may take."""

    timeout: Duration = duration("30s")
    """After this a message that is not acknowledged is given up; its outcome is then unknown."""

    payload_max_bytes: int = 1_000_000
    """The largest payload. With key and headers it has to fit the topic's max.message.bytes (Kafka: 1,048,588)."""

    key_max_bytes: int = 1_024
    """The largest key."""

    headers_max: int = 64
    """The most headers that you may give a message; Penstock's own come on top."""

    headers_max_bytes: int = 16_384
    """The most bytes in the names and values of the headers that you give a message."""

    def __post_init__(self) -> None:
        if self.timeout < 100:
            raise ConfigError(f"send timeout {self.timeout} is too short", next_step="give 100ms or more")
        leasts = {"payload_max_bytes": 1, "key_max_bytes": 1, "headers_max": 0, "headers_max_bytes": 0}
        for name, least in leasts.items():
            if not least <= getattr(self, name) <= SEND_BYTES_MAX:
                raise ConfigError(
                    f"send {name} {getattr(self, name)} is out of bounds", next_step=f"use {least} to {SEND_BYTES_MAX}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How queues treat their messages, unless `app.queue(...)` says otherwise."""

    lease: Duration = duration("30s")
    """How long a message stays with a worker that is silent; then it is redelivered."""

    attempts_max: int = 5
    """How often a message may fail before it is buried in the dead letters."""

    backoff: Duration = duration("1s")
    """How long a message that failed waits before it is tried again; it doubles with every attempt."""

    backoff_max: Duration = duration("10m")
    """The longest that a message waits after a failure."""

    time_limit: Duration | None = None
    """How long a handler may work on one message or batch before it is taken from it; none is for ever."""

    in_hand_max: int = 1_000
    """How many messages a worker may have taken and not finished."""

    in_hand_max_bytes: int = 64 * 1024 * 1024
    """The same in bytes of their values: above it nothing more is taken."""

    in_hand_max_per_key: int = 100
    """How many of them may have one key, where those with the same key wait for each other."""

    in_hand_max_bytes_per_key: int = 8 * 1024 * 1024
    """The same in bytes of their values."""

    gaps_max: int = 1_000_000
    """How many unfinished places in one partition a worker keeps an eye on before it stops reading on."""

    grace: Duration = duration("30s")
    """How long what is being worked on may take when a worker is asked to stop; then it is given back."""

    partitions: int = 8
    """How many partitions the topic of a queue gets, where it does not exist."""

    snapshot_every: int = 100_000
    """Records between two snapshots of a partition of a queue's ledger."""

    def __post_init__(self) -> None:
        if not 100 <= self.lease <= 86_400_000:
            raise ConfigError(f"queue lease {self.lease} is out of bounds", next_step='use "100ms" to "1d"')
        if self.backoff > self.backoff_max:
            raise ConfigError(
                f"queue backoff {self.backoff} is longer than backoff_max {self.backoff_max}",
                next_step="make backoff_max as long, or longer",
            )
        if self.time_limit is not None and self.time_limit < 1:
            raise ConfigError("queue time_limit is no time at all", next_step='give "10m", or leave it out')
        if not 1 <= self.partitions <= 10_000:
            raise ConfigError(f"queue partitions {self.partitions} is out of bounds", next_step="use 1 to 10000")
        bounds = ("attempts_max", "in_hand_max", "in_hand_max_bytes", "gaps_max", "snapshot_every")
        for name in (*bounds, "in_hand_max_per_key", "in_hand_max_bytes_per_key"):
            if getattr(self, name) < 1:
                raise ConfigError(f"queue {name} {getattr(self, name)} is out of bounds", next_step="use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """Landing Kafka in Delta tables: the Spark that does it, and the pipelines, each a section `[lake.NAME]`."""

    master: str = "local[*]"
    """Where Spark runs: this machine, or a cluster such as "spark://host:7077", "yarn" or "k8s://https://host"."""

    driver_memory: str = "2g"
    """Java heap of the Spark driver, which on one machine does all the work."""

    packages: tuple[str, ...] = ()
    """Further jars by their Maven coordinates, such as those for s3a:// tables, or those of another line of Spark."""

    spark: Mapping[str, str] = field(default_factory=dict)
    """Any further properties of the Spark session."""

    folder: Path | None = None
    """Relative tables, checkpoints and files count from here: the folder of the file that names them, unless given."""

    pipelines: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The options of each pipeline as they were given; `penstock.lake.options` reads them."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9][0-9]*[kmgtKMGT]", self.driver_memory):
            raise ConfigError(
                f"lake.driver_memory {self.driver_memory!r} is no amount of memory", next_step='write "2g" or "512m"'
            )
        if not self.master:
            raise ConfigError("lake.master is empty", next_step='give "local[*]" or the address of a cluster')
        for name in self.pipelines:
            try:
                checked_name("lake pipeline", name)
            except UsageError as problem:
                raise ConfigError(problem.what, next_step=problem.next_step) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the command line logs; inside your own program Penstock logs through `logging` and configures nothing."""

    level: Literal["debug", "info", "warning", "error"] = "warning"
    """The least weight that is logged."""

    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything, as loaded from flags, environment and file."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    ledgers: Mapping[str, LedgerSettings] = field(default_factory=dict)
    claims: ClaimsSettings = field(default_factory=ClaimsSettings)
    send: SendSettings = field(default_factory=SendSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    lake: LakeSettings = field(default_factory=LakeSettings)
    log: LogSettings = field(default_factory=LogSettings)
    topic_prefix: str = ""
    """Put before the name of every topic that Penstock makes."""
