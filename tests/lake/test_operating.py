"""What operators do to tables: rewind, replay dead letters, maintain. A real broker, a real Spark, another reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_ground import Ground, landed
from lake_table import offsets_of, operations_of, rows_of, stored_in
from real_kafka import settings_for

from penstock.crash import armed
from penstock.errors import Gap, NotFound, Refused, Restored, UsageError
from penstock.lake.maintenance import maintain
from penstock.lake.options import LakeOptions
from penstock.lake.replay_dead import replay_dead
from penstock.lake.rewind import rewind_to_offsets, rewind_to_version
from penstock.lake.table_log import facts_of
from penstock.settings import Settings
from penstock.values import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.broker import Embedded

pytestmark = pytest.mark.spark


class Died(BaseException):
    """In the place of a kill: nothing catches it."""


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(spark, settings_for(penstock_broker.bootstrap), tmp_path)
    yield made
    made.close()


def options_of(ground: Ground, **given: object) -> LakeOptions:
    options = ground.options(**given)
    return LakeOptions.read(str(options.pop("name")), options)


def dying_at(name: str) -> AbstractContextManager[None]:
    def hook(point: str) -> None:
        if point == name:
            raise Died

    return armed(hook)


def test_a_table_goes_back_to_a_version_with_its_offsets_and_what_came_since_is_landed_again(ground: Ground) -> None:
    settings, place = Settings(kafka=ground.kafka), str(ground.table)
    ground.send(0, range(10))
    ground.land()  # version 1
    ground.send(0, range(10, 20))
    ground.send(1, range(20, 25))
    ground.land()  # version 2
    options = options_of(ground)

    def back_to_first() -> int:
        return rewind_to_version(ground.spark, settings, options, place=place, version=1).version

    # Whoever dies between the rows and the offsets leaves a table that a run refuses, and that is rewound again.
    with dying_at("lake.rewind_restored"), pytest.raises(Died):
        back_to_first()
    with pytest.raises(Restored):
        ground.land()
    version = back_to_first()

    assert operations_of(ground.table)[-2:] == ["RESTORE", "STREAMING UPDATE"]
    assert len(operations_of(ground.table)) == version + 1
    assert offsets_of(ground.table) == [(0, each) for each in range(10)]
    # Partition 1 was not known then: it begins at its start.
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 9, f"{ground.app_id}-1": -1}

    ground.land()

    assert offsets_of(ground.table) == [*((0, each) for each in range(20)), *((1, each) for each in range(5))]
    with pytest.raises(NotFound, match="no version 99"):
        rewind_to_version(ground.spark, settings, options, place=place, version=99)


def test_offsets_go_forward_over_a_gap_and_never_back_behind_a_row(ground: Ground) -> None:
    settings, place, options = Settings(kafka=ground.kafka), str(ground.table), options_of(ground)

    def to(**next_offsets: int) -> dict[int, int]:
        wanted = {int(name[1:]): offset for name, offset in next_offsets.items()}
        done = rewind_to_offsets(ground.spark, settings, options, place=place, wanted=wanted)
        return {each.partition: offset for each, offset in done.next_offsets.items()}

    ground.send(0, range(30))
    ground.send(1, range(30, 35))
    ground.land()
    with pytest.raises(Refused, match=f"offset [0-9]+ of {ground.topic}/0: going back behind it would land it twice"):
        to(p0=12)
    with pytest.raises(UsageError, match="has offsets from 0 to 30, not 31"):
        to(p0=31)
    with pytest.raises(NotFound, match="no partition 7"):
        to(p7=0)

    ground.send(0, range(35, 55))
    ground.admin.cut(ground.at(0), 40)
    with pytest.raises(Gap):
        ground.land()
    assert to(p0=40) == {0: 40, 1: 5}
    ground.land()

    assert offsets_of(ground.table) == [
        *((0, each) for each in (*range(30), *range(40, 50))),
        *((1, each) for each in range(5)),
    ]


def test_mended_dead_letters_are_landed_once_whenever_the_replay_died(ground: Ground) -> None:
    settings = Settings(kafka=ground.kafka)
    ground.send(0, range(3))
    ground.send_raw(0, *(b'{"id": "x%d", "name": "mended"}' % each for each in range(10, 14)), b"junk")
    ground.land(dead_letters=str(ground.dead))
    assert len(rows_of(ground.dead)) == 5
    mended = options_of(
        ground,
        dead_letters=str(ground.dead),
        columns="id STRING, name STRING",
        transforms={"id": "cast(replace(id, 'x') AS BIGINT)"},
    )

    def replay(where: str = "") -> tuple[int, int, int, int]:
        done = replay_dead(ground.spark, settings, mended, where=where)
        return done.finished, done.messages, done.rows, done.still_bad

    with pytest.raises(UsageError, match="--where"):
        replay("no_such_column = 1")
    with dying_at("lake.replay_marked"), pytest.raises(Died):
        replay("offset <= 4")
    assert sorted(row["id"] for row in rows_of(ground.table)) == [0, 1, 2]
    # The ones that were marked are finished first: landed, and this time not removed from the dead letters.
    with dying_at("lake.replay_landed"), pytest.raises(Died):
        replay("offset = 5")
    assert sorted(row["id"] for row in rows_of(ground.table)) == [0, 1, 2, 10, 11]
    assert len(rows_of(ground.dead)) == 5

    assert replay("offset = 5") == (0, 1, 1, 0)
    assert replay() == (0, 1, 1, 1)

    assert offsets_of(ground.table) == [(0, each) for each in range(7)]
    assert sorted(row["id"] for row in rows_of(ground.table)) == [0, 1, 2, 10, 11, 12, 13]
    (left,) = rows_of(ground.dead)
    assert (left["offset"], bytes(left["value"])) == (7, b"junk")

    # Landing goes on in both tables, beside the marks.
    ground.send_raw(0, b"more junk", b'{"id": 20, "name": "n20"}')
    ground.land(dead_letters=str(ground.dead))
    assert offsets_of(ground.table)[-1] == (0, 9)
    assert sorted(row["offset"] for row in rows_of(ground.dead)) == [7, 8]


def test_small_files_become_large_ones_beside_landing_and_old_ones_go_when_nobody_lands(ground: Ground) -> None:
    given = {"transforms": {"half": "id >= 10"}, "partition_by": ["half"]}
    for each in range(3):
        ground.send(0, [each])
        ground.land(**given)
    options = options_of(ground, **{**given, "min_bytes_per_file": 1_000_000, "vacuum_after": "0s"})
    pipeline = ground.pipeline(**given).start()
    ground.send(0, [10])
    landed(pipeline, 1)

    (beside,) = maintain(ground.spark, options, closed_after=duration(0), beside_landing=True)
    ground.send(0, [11])
    landed(pipeline, 2)
    pipeline.stop()
    before = facts_of(ground.table)
    (alone,) = maintain(ground.spark, options, closed_after=duration("1h"), beside_landing=False)

    assert beside.partitions == ("`half` = 'false'",)
    assert (beside.files_compacted, beside.files_written, beside.files_removed) == (3, 1, 0)
    # Nothing is closed for an hour; but the three files are not needed any more.
    assert (alone.partitions, alone.files_removed) == ((), 3)
    assert before is not None
    assert (before.rows, before.files) == (5, 3)
    assert before.transactions == stored_in(ground.table) == {f"{ground.app_id}-0": 4}
    assert sorted(row["id"] for row in rows_of(ground.table)) == [0, 1, 2, 10, 11]
    assert pipeline.failure is None
