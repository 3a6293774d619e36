"""What stands before a stream begins: tables that are made or checked, and the offsets that it begins at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.kafka.topics import Admin
from penstock.lake.landing import DEAD_LETTERS
from penstock.lake.offsets import Naming, Offsets, anchors, lowest, starting
from penstock.lake.option_forms import StartingOffsets, Topics
from penstock.lake.options import LakeOptions
from penstock.lake.sink import Table
from penstock.observe import tell
from penstock.observe.events import LakeTableMade
from penstock.values import Bounds, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a stream without a checkpoint begins, and what the tables have by then."""

    starts: Offsets
    stored: Offsets


def naming_of(options: LakeOptions) -> Naming:
    return Naming(options.app_id, with_topic=not options.topic.is_one)


def partitions_of(admin: Admin, topics: Topics) -> list[TopicPartition]:
    """Raises NotFound when a topic is not there."""
    names = list(topics.names) or sorted(name for name in admin.names() if re.fullmatch(topics.pattern, name))
    found = admin.describe(names)
    if missing := [name for name in names if name not in found] or not names:
        which = ", ".join(missing) if isinstance(missing, list) else topics.pattern
        raise NotFound(f"there is no topic {which}", next_step="make it, or correct `topic` of the pipeline")
    return [TopicPartition(name, each) for name, topic in found.items() for each in range(topic.partitions)]


def make_table(table: Table, schema: StructType, options: LakeOptions, kept: Mapping[str, str]) -> None:
    """The table of a pipeline, with what keeps its log and its statistics small, and what it is to keep for us."""
    properties = {"delta.checkpointInterval": str(options.checkpoint_every)}
    if options.statistics:
        properties["delta.dataSkippingStatsColumns"] = ",".join(options.statistics)
    table.make(
        schema,
        partition_by=options.partition_by,
        cluster_by=options.cluster_by,
        properties={**properties, **kept, **options.table_properties},
    )
    tell(LakeTableMade(pipeline=options.name, table=table.place))


def make_dead_letters(table: Table, options: LakeOptions) -> None:
    from pyspark.sql.types import StructType

    if not table.exists():
        table.make(
            StructType.fromDDL(DEAD_LETTERS),
            properties={
                "delta.checkpointInterval": str(options.checkpoint_every),
                "delta.dataSkippingNumIndexedCols": "4",
            },
        )


def start_of(admin: Admin, options: LakeOptions, tables: list[Table]) -> Start:
    """Behind what every table has; where they have nothing, at `starting_offsets`, which the tables then remember.

    Raises Gap and Refused as `offsets.starting` does.
    """
    naming = naming_of(options)
    partitions = partitions_of(admin, options.topic)
    bounds = admin.bounds(partitions)
    several = [table.stored(naming, partitions) for table in tables]
    stored = lowest(several, partitions)
    initial = initial_offsets(admin, options.starting_offsets, bounds)
    starts = starting(bounds=bounds, stored=stored, initial=initial)
    if options.starting_offsets.where != "earliest":
        for table, of_table in zip(tables, several, strict=True):
            if new := anchors(stored=of_table, starts=starts):
                table.store(naming, new)
                stored = {**stored, **{each: last for each, last in new.items() if each not in stored}}
    return Start(starts=starts, stored=stored)


def initial_offsets(
    admin: Admin, wanted: StartingOffsets, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    """Where `starting_offsets` says that a partition begins of which the tables have nothing."""
    match wanted.where:
        case "latest":
            return {each: has.stable_end for each, has in bounds.items()}
        case "timestamp":
            found = admin.offsets_at(bounds, wanted.timestamp_ms)
            return {each: found.get(each, has.stable_end) for each, has in bounds.items()}
        case "offsets":
            return {each: _given(wanted, each, has) for each, has in bounds.items()}
    return {each: has.start for each, has in bounds.items()}


def _given(wanted: StartingOffsets, partition: TopicPartition, has: Bounds) -> int:
    by_partition = wanted.offsets.get(partition.topic, wanted.offsets.get("", {}))
    offset = by_partition.get(partition.partition, -2)
    return {-2: has.start, -1: has.stable_end}.get(offset, offset)
