"""Which topics the configured capabilities need, and what must be done to a cluster so that it has them.

Pure, but for `carry_out`, which does it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from penstock.errors import UsageError
from penstock.kafka.topics import Admin, TopicInfo, TopicSpec
from penstock.ledger.topics import REPLICATION, for_cluster, ledger_topics
from penstock.settings import Settings
from penstock.values import checked_name


def needed(settings: Settings) -> tuple[TopicSpec, ...]:
    """Every topic that the configured capabilities need, with its reason; replication is left to the cluster.

    Raises UsageError for a name that Kafka would not take.
    """
    if settings.topic_prefix:
        checked_name("topic prefix", settings.topic_prefix)
    specs = (spec for name, partitions in ledgers(settings).items() for spec in ledger_topics(name, partitions))
    return tuple(replace(spec, name=settings.topic_prefix + spec.name) for spec in specs)


def ledgers(settings: Settings) -> dict[str, int]:
    """Every ledger with its number of partitions: one's own, then coordination, which all that is shared stands on.

    Raises UsageError for a name that Kafka would not take, and for one's own that is called like the coordination.
    """
    own = {checked_name("ledger", name): ledger.partitions for name, ledger in settings.ledgers.items()}
    if settings.claims.topic in own:
        raise UsageError(
            f"ledger {settings.claims.topic} would be the coordination ledger too",
            next_step="give one of them another name, in [ledgers] or as [claims] topic",
        )
    return {**own, settings.claims.topic: settings.claims.partitions}


class Difference(NamedTuple):
    setting: str
    is_now: str
    should_be: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is to be done about one topic."""

    spec: TopicSpec
    action: Literal["create", "alter", "none", "refuse"]
    changes: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()
    """What is wrong and cannot be mended without risk or moving data."""
    next_step: str = field(default="")


def steps(specs: Iterable[TopicSpec], there: Mapping[str, TopicInfo], *, brokers: int) -> tuple[Step, ...]:
    """Compare what should be with what is."""
    return tuple(_step(for_cluster(spec, brokers=brokers), there.get(spec.name)) for spec in specs)


def _step(spec: TopicSpec, info: TopicInfo | None) -> Step:
    if info is None:
        return Step(spec=spec, action="create")
    if info.partitions != spec.partitions:
        return _partition_mismatch(spec, info)
    changes = differences(spec, info)
    problems, next_step = _too_few_copies(spec, info)
    return Step(
        spec=spec, action="alter" if changes else "none", changes=changes, problems=problems, next_step=next_step
    )


def differences(spec: TopicSpec, info: TopicInfo) -> tuple[Difference, ...]:
    """The settings that do not do, with what they should be. A broker that hides a setting gets it set."""
    config = dict(spec.config)
    if info.replication < REPLICATION:
        # Two in sync of two copies would stop all writing when one broker rests.
        config["min.insync.replicas"] = "1"
    found = ((setting, info.config.get(setting, ""), should) for setting, should in sorted(config.items()))
    return tuple(Difference(*one) for one in found if not _does(*one))


_AT_LEAST = frozenset({"min.insync.replicas", "max.message.bytes", "min.compaction.lag.ms"})


def _does(setting: str, is_now: str, should_be: str) -> bool:
    if setting in _AT_LEAST and is_now.isdecimal():
        return int(is_now) >= int(should_be)
    return is_now.strip().lower() == should_be.lower()


def _partition_mismatch(spec: TopicSpec, info: TopicInfo) -> Step:
    # Facts are placed by partition number: neither adding nor removing partitions keeps them where they belong.
    return Step(
        spec=spec,
        action="refuse",
        changes=differences(spec, info),
        problems=(f"{spec.name} has {info.partitions} partitions, the configuration says {spec.partitions}",),
        next_step=f"set partitions = {info.partitions} in the configuration, or choose another name",
    )


def _too_few_copies(spec: TopicSpec, info: TopicInfo) -> tuple[tuple[str, ...], str]:
    if spec.replication is None or info.replication >= spec.replication:
        return (), ""
    return (
        (f"{spec.name} has {info.replication} of {spec.replication} copies",),
        f"move it to {spec.replication} brokers with kafka-reassign-partitions.sh, then run this again",
    )


def create_command(spec: TopicSpec) -> str:
    """The same with Kafka's own tools, for those who make the topics."""
    words = ["kafka-topics.sh", "--bootstrap-server", "$BOOTSTRAP", "--create", "--if-not-exists"]
    words += ["--topic", spec.name, "--partitions", str(spec.partitions)]
    words += ["--replication-factor", str(spec.replication)] if spec.replication else []
    words += [word for setting, value in sorted(spec.config.items()) for word in ("--config", f"{setting}={value}")]
    return " ".join(f'"{word}"' if word == "$BOOTSTRAP" else shlex.quote(word) for word in words)


def carry_out(todo: Iterable[Step], admin: Admin) -> None:
    """Make and alter what the steps say; refused ones are left alone."""
    for step in todo:
        if step.action == "create":
            admin.create([step.spec])
        elif step.action == "alter":
            # In one call: a topic that lost its compaction but not yet its retention could forget facts.
            admin.alter(step.spec.name, {change.setting: change.should_be for change in step.changes})
