"""Setting a table back, rows and offsets together; and stepping over messages that are gone.

RESTORE takes rows back and leaves the offsets, so whoever lands next would leave a hole. Here the rows go back to a
version by RESTORE, then one more commit sets the offsets to what that version had. Between the two a run refuses to
start, and doing the same again mends it. Spark's checkpoint is removed first: the table alone says where to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.crash import crash_point
from penstock.errors import NotFound, Refused, UsageError
from penstock.kafka.topics import Admin
from penstock.lake.lag import next_offset
from penstock.lake.offsets import Naming, Offsets
from penstock.lake.operating import operating_session
from penstock.lake.options import ORIGIN, LakeOptions
from penstock.lake.preparing import initial_offsets, naming_of, partitions_of
from penstock.lake.sink import Table
from penstock.settings import Settings
from penstock.values import Bounds, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPLAYS = TopicPartition("", 0)
"""Replays of dead letters are numbered; the table keeps the number of the last one as if it were an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """What was done."""

    table: str
    version: int
    """The new version, with the rows and offsets that were asked for."""
    next_offsets: Offsets
    """What is landed next, by partition."""
    replay_undone: bool = False
    """Dead letters had been replayed into the table since: their rows are gone from it."""


def replay_naming(app_id: str) -> Naming:
    return Naming(f"{app_id}.replay", with_topic=False)


def chosen_table(options: LakeOptions, place: str | None) -> str:
    """The one table of the pipeline, or that which was named. Raises UsageError."""
    places = [landing.table for landing in options.landings()]
    if place is None and len(places) == 1:
        return places[0]
    if place is not None and place in places:
        return place
    what = f"pipeline {options.name} lands in several tables" if place is None else f"it does not land in {place}"
    raise UsageError(what, next_step=f"name one of them: --table {' | '.join(places)}")


def rewind_to_version(
    session: SparkSession, settings: Settings, options: LakeOptions, *, place: str, version: int
) -> Rewound:
    """Rows and offsets as of this version. Raises NotFound without such a version, Refused if its files are gone."""
    own = operating_session(session)
    table, naming = _opened(own, place), naming_of(options)
    now, then = table.begin().all_stored(), table.stored_at(version)
    with Admin(settings.kafka) as admin:
        partitions = partitions_of(admin, options.topic)
        bounds = admin.bounds(partitions)
        initial = initial_offsets(admin, options.starting_offsets, bounds)
    known = [each for each in partitions if naming.of(each) in now]
    offsets = offsets_as_of(then, naming, known, initial)
    remove_folder(own, options.checkpoint_place)
    _restore(own, place, version)
    crash_point("lake.rewind_restored")
    replays = replay_naming(options.app_id)
    marker = replays.of(REPLAYS)
    if marker in now:
        # A number that was used is never used again, so it stays; but it has to be younger than the RESTORE.
        table.store(replays, {REPLAYS: now[marker]})
    return Rewound(
        table=place,
        version=table.store(naming, offsets),
        next_offsets={each: last + 1 for each, last in offsets.items()},
        replay_undone=now.get(marker) != then.get(marker),
    )


def rewind_to_offsets(
    session: SparkSession, settings: Settings, options: LakeOptions, *, place: str, wanted: Mapping[int, int]
) -> Rewound:
    """The next offset of partitions, without touching rows: forwards over messages that are not to be landed.

    Backwards only as far as no row is in the way. Raises Refused where one is, NotFound without such a partition.
    """
    own = operating_session(session)
    table, naming = _opened(own, place), naming_of(options)
    if not options.topic.is_one:
        raise UsageError("the offsets of several topics are not told apart by partitions", next_step="use --to-version")
    with Admin(settings.kafka) as admin:
        partitions = {each.partition: each for each in partitions_of(admin, options.topic)}
        bounds = admin.bounds(partitions.values())
    offsets = {}
    for number, next_one in wanted.items():
        if number not in partitions:
            raise NotFound(f"{options.topic} has no partition {number}", next_step=f"it has {len(partitions)}")
        offsets[partitions[number]] = next_one - 1
    stored = table.stored(naming, partitions.values())
    for each, last in offsets.items():
        check_within(each, last + 1, bounds[each])
        if last < stored.get(each, -1):
            _check_no_rows_above(own, table, each, last)
    remove_folder(own, options.checkpoint_place)
    return Rewound(
        table=place,
        version=table.store(naming, offsets),
        next_offsets={each: next_offset(last, bounds[each]) for each, last in {**stored, **offsets}.items()},
    )


def offsets_as_of(
    then: Mapping[str, int], naming: Naming, partitions: list[TopicPartition], initial: Offsets
) -> dict[TopicPartition, int]:
    """What to store: the offsets of a version; where it had none yet, what lies before the start."""
    return {each: then.get(naming.of(each), initial[each] - 1) for each in partitions}


def check_within(partition: TopicPartition, next_one: int, bounds: Bounds) -> None:
    """Raises UsageError for an offset that the topic does not have."""
    if not bounds.start <= next_one <= bounds.end:
        raise UsageError(
            f"{partition} has offsets from {bounds.start} to {bounds.end}, not {next_one}",
            next_step="choose one of them",
        )


def remove_folder(session: SparkSession, place: str) -> None:
    """Also where the folder is not on this machine."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).delete(path, True)


def _opened(session: SparkSession, place: str) -> Table:
    table = Table(session, place)
    if not table.exists():
        raise NotFound(f"there is no table at {place}", next_step="nothing was landed there yet")
    return table


def _restore(session: SparkSession, place: str, version: int) -> None:
    from delta.tables import DeltaTable

    try:
        DeltaTable.forPath(session, place).restoreToVersion(version)
    except Exception as failure:
        reason = str(failure).strip().partition("\n")[0]
        raise Refused(
            f"{place} cannot be restored to version {version}: {reason}",
            next_step="choose a later version: files that VACUUM removed do not come back",
        ) from failure


def _check_no_rows_above(session: SparkSession, table: Table, partition: TopicPartition, last: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    topic, number, offset = ORIGIN[:3]
    rows = session.read.format("delta").load(table.place)
    if not {topic, number, offset} <= set(rows.columns):
        what = (
            f"{table.place} has no origin columns, so nobody can tell whether it has rows of {partition} above {last}"
        )
    else:
        of_partition = (F.col(topic) == partition.topic) & (F.col(number) == partition.partition)
        found = rows.where(of_partition & (F.col(offset) > last)).select(offset).first()
        if found is None:
            return
        what = f"{table.place} has offset {found[0]} of {partition}: going back behind it would land it twice"
    raise Refused(what, next_step="use --to-version, which takes rows back too, or delete those rows first")
