"""Landing on a real broker and a real Spark, judged by the table's log and by a reader that is not Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from lake_ground import Ground, ended, landed
from lake_table import log_of, offsets_of, operations_of, rows_of, stored_in
from real_kafka import eventually, settings_for, unique

from penstock.crash import armed
from penstock.errors import ConfigError, Fenced, Gap, Refused, Restored
from penstock.kafka.transactions import Transactions
from penstock.lake.pipeline import Pipeline
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.broker import Embedded

pytestmark = pytest.mark.spark


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(spark, settings_for(penstock_broker.bootstrap), tmp_path)
    yield made
    made.close()


def every(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


def test_rows_and_offsets_are_one_commit_and_nothing_lands_twice_whatever_becomes_of_the_checkpoint(
    ground: Ground,
) -> None:
    ground.send(0, range(100))
    ground.send(1, range(100, 150))

    first = ground.land()

    assert first.progress.rows == 150
    assert first.progress.version == 1
    # Every further action would read Kafka and parse again.
    assert len(ground.spark.sparkContext.statusTracker().getJobIdsForGroup(first.run_id)) == 1
    made, committed = log_of(ground.table).values()
    assert [action["protocol"] for action in made if "protocol" in action] == [
        {"minReaderVersion": 1, "minWriterVersion": 2}
    ]
    (info,) = [action["commitInfo"] for action in committed if "commitInfo" in action]
    assert info["operation"] == "STREAMING UPDATE"
    assert info["operationParameters"] == {"outputMode": "Append", "queryId": ground.app_id, "epochId": "0"}
    assert {action["txn"]["appId"]: action["txn"]["version"] for action in committed if "txn" in action} == {
        f"{ground.app_id}-0": 99,
        f"{ground.app_id}-1": 49,
    }
    assert DeltaTable(str(ground.table)).transaction_version(f"{ground.app_id}-0") == 99
    assert sorted(row["id"] for row in rows_of(ground.table)) == list(range(150))
    assert ground.shown() == {0: 100, 1: 50}

    # Nothing new: nothing is committed.
    assert ground.land().progress.batches == 0
    assert list(log_of(ground.table)) == [0, 1]

    # With an old checkpoint everything since then is read again.
    kept = ground.table.parent / "kept"
    shutil.copytree(ground.checkpoint, kept)
    ground.send(0, range(200, 220))
    ground.land()
    shutil.rmtree(ground.checkpoint)
    shutil.copytree(kept, ground.checkpoint)
    ground.send(0, range(220, 230))
    ground.land()
    assert offsets_of(ground.table) == every(130, 50)

    # Without one the table says where to go on.
    shutil.rmtree(ground.checkpoint)
    ground.send(1, range(300, 310))
    lost = ground.land()
    assert lost.progress.rows == 10
    assert offsets_of(ground.table) == every(130, 60)
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 129, f"{ground.app_id}-1": 59}
    assert ground.shown() == {0: 130, 1: 60}


def test_a_gap_stops_with_the_exact_range(ground: Ground) -> None:
    ground.send(0, range(50))
    ground.land()

    # The table is set back by hand; the checkpoint is not.
    ground.delta().store(ground.naming, {ground.at(0): 9})
    ground.send(0, range(50, 60))
    with pytest.raises(Gap) as behind:
        ground.land()
    assert (behind.value.topic, behind.value.partition) == (ground.topic, 0)
    assert (behind.value.first, behind.value.last) == (10, 49)

    # Retention took what was not read yet.
    shutil.rmtree(ground.checkpoint)
    ground.admin.cut(ground.at(0), 30)
    with pytest.raises(Gap) as deleted:
        ground.land()
    assert (deleted.value.first, deleted.value.last) == (10, 29)

    # The table is another one.
    apart = {"checkpoint": str(ground.table.parent / "apart")}
    ground.delta().store(ground.naming, {ground.at(0): 29})
    ground.land(**apart)
    shutil.rmtree(ground.table)
    ground.send(0, range(60, 61))
    with pytest.raises(Gap) as replaced:
        ground.land(**apart)
    assert (replaced.value.first, replaced.value.last) == (30, 59)
    assert operations_of(ground.table) == ["CREATE TABLE"]


def test_a_second_writer_is_fenced_before_and_during_a_batch(ground: Ground) -> None:
    ground.send(0, range(10))
    pipeline = ground.pipeline().start()
    landed(pipeline, 10)
    ground.delta().store(ground.naming, {ground.at(0): 14})
    ground.send(0, range(10, 20))
    assert isinstance(ended(pipeline), Fenced)
    assert offsets_of(ground.table) == every(10)

    def rival(point: str) -> None:
        if point == "lake.files_written":
            ground.delta().store(ground.naming, {ground.at(0): 17})

    with armed(rival), pytest.raises(Fenced):
        ground.land()
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 17}
    assert offsets_of(ground.table) == every(10)


def test_aborted_transactions_are_invisible_also_at_the_end(ground: Ground) -> None:
    ground.send(0, range(5))
    with Transactions(ground.kafka, group="g", instance=unique("i"), announce=lambda _: None) as transactions:
        transactions.open()
        transactions.begin()
        transactions.send(*ground.at(0), b'{"id": 5}')
        transactions.commit()
        transactions.begin()
        transactions.send(*ground.at(0), b'{"id": 999}')
        transactions.send(*ground.at(1), b'{"id": 999}')
        both = [ground.at(0), ground.at(1)]
        eventually(lambda: [has.end for has in ground.admin.bounds(both).values()] == [8, 1])
        transactions.abort()
    eventually(lambda: [has.stable_end for has in ground.admin.bounds(both).values()] == [9, 2])

    ground.land()

    assert sorted(row["id"] for row in rows_of(ground.table)) == [0, 1, 2, 3, 4, 5]
    # Nothing is visible at the very end, and nothing at all in partition 1: they are dealt with all the same.
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 8, f"{ground.app_id}-1": 1}


def test_new_partitions_and_the_form_of_a_growing_table_are_taken_while_the_stream_runs(ground: Ground) -> None:
    ground.send(0, range(5))
    pipeline = ground.pipeline().start()
    landed(pipeline, 5)

    ground.admin.grow(ground.topic, 4)
    ground.send(3, range(5, 10))
    landed(pipeline, 10)

    changes = ["ALTER TABLE delta.`{}` ADD COLUMN other INT"]

    def other_writer(point: str) -> None:
        if point == "lake.files_written" and changes:
            ground.spark.sql(changes.pop().format(ground.table))

    with armed(other_writer):
        ground.send(0, range(10, 15))
        landed(pipeline, 15)
    assert not changes
    pipeline.stop()

    assert pipeline.failure is None
    assert offsets_of(ground.table) == [*((0, each) for each in range(10)), *((3, each) for each in range(5))]
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 9, f"{ground.app_id}-3": 4}
    assert all(row["other"] is None for row in rows_of(ground.table))


def test_a_table_of_kafka_delta_ingest_is_taken_over_where_it_ended(ground: Ground) -> None:
    ground.send(0, range(10))
    ground.send(1, range(10, 20))
    DeltaTable.create(
        str(ground.table),
        schema=Schema([Field("id", "long"), Field("name", "string")]),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(f"{ground.app_id}-0", 6), Transaction(f"{ground.app_id}-1", 9)]
        ),
    )

    ground.land(origin_columns=False)

    assert sorted(row["id"] for row in rows_of(ground.table)) == [7, 8, 9]
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 9, f"{ground.app_id}-1": 9}


def test_a_restored_table_stops_the_run_until_its_offsets_are_set_back(ground: Ground) -> None:
    ground.send(0, range(10))
    ground.land()
    ground.send(0, range(10, 20))
    ground.land()
    ground.spark.sql(f"RESTORE TABLE delta.`{ground.table}` TO VERSION AS OF 1")
    ground.send(0, range(20, 30))

    with pytest.raises(Restored) as stopped:
        ground.land()
    assert stopped.value.version == 3

    ground.delta().store(ground.naming, {ground.at(0): 9})
    shutil.rmtree(ground.checkpoint)
    ground.land()
    assert offsets_of(ground.table) == every(30)


def test_bad_messages_are_in_the_dead_letters_once_though_the_run_died_between_the_two_commits(ground: Ground) -> None:
    ground.send(0, range(5))
    ground.send_raw(0, b"junk", b"\xff\xfe")
    ground.send(1, range(5, 10))

    with pytest.raises(Refused, match=f"{ground.topic}/0 offset 5: not one JSON object"):
        ground.land()
    assert rows_of(ground.table) == []

    def dies(point: str) -> None:
        if point == "lake.dead_letters_committed":
            raise Refused("died here")

    with armed(dies), pytest.raises(Refused, match="died here"):
        ground.land(dead_letters=str(ground.dead))
    assert rows_of(ground.table) == []

    ground.send_raw(1, b"poison at the very end")
    ground.land(dead_letters=str(ground.dead))
    ground.land(dead_letters=str(ground.dead))

    dead = sorted(rows_of(ground.dead), key=lambda row: (row["partition"], row["offset"]))
    assert [(row["partition"], row["offset"], bytes(row["value"])) for row in dead] == [
        (0, 5, b"junk"),
        (0, 6, b"\xff\xfe"),
        (1, 5, b"poison at the very end"),
    ]
    assert [row["error"] for row in dead][:2] == ["not one JSON object", "the value is not UTF-8"]
    assert offsets_of(ground.table) == every(5, 5)
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 6, f"{ground.app_id}-1": 5}


def test_a_start_at_the_latest_offset_is_remembered_by_the_table(ground: Ground) -> None:
    ground.send(0, range(10))
    ground.send(1, range(3))

    ground.land(starting_offsets="latest")
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 9, f"{ground.app_id}-1": 2}
    ground.send(0, range(10, 12))
    shutil.rmtree(ground.checkpoint)
    ground.land(starting_offsets="latest")

    assert offsets_of(ground.table) == [(0, 10), (0, 11)]


def test_a_table_that_would_forget_its_offsets_is_refused(ground: Ground) -> None:
    ground.land()
    ground.spark.sql(
        f"ALTER TABLE delta.`{ground.table}` SET TBLPROPERTIES "
        "('delta.setTransactionRetentionDuration' = 'interval 1 day')"
    )

    with pytest.raises(ConfigError, match="UNSET TBLPROPERTIES"):
        ground.land()


def test_several_topics_in_one_table_and_one_topic_in_several(ground: Ground, tmp_path: Path) -> None:
    ground.send(0, range(4))
    other = Ground(ground.spark, ground.kafka, tmp_path, partitions=1)
    other.send(0, range(100, 103))

    both = ground.pipeline(topic=[ground.topic, other.topic], ends_at_latest_offsets=True)
    both.run()

    assert both.progress.rows == 7
    assert stored_in(ground.table) == {
        f"{ground.app_id}-{ground.topic}-0": 3,
        f"{ground.app_id}-{other.topic}-0": 2,
    }

    even, odd = tmp_path / "even", tmp_path / "odd"
    routes = [{"table": str(even), "condition": "id % 2 = 0"}, {"table": str(odd), "condition": "id % 2 = 1"}]
    routed = Pipeline(
        {
            "name": "routed",
            "app_id": other.app_id,
            "topic": other.topic,
            "route": routes,
            "columns": "id BIGINT",
            "ends_at_latest_offsets": True,
        },
        both._settings,
        session=ground.spark,
        lock=False,
    )
    deaths = ["once"]

    def dies_between(point: str) -> None:
        if point == "lake.table_committed" and deaths:
            raise Refused(deaths.pop())

    with armed(dies_between), pytest.raises(Refused, match="once"):
        routed.run()
    Pipeline(routed.options, both._settings, session=ground.spark, lock=False).run()

    assert [sorted(row["id"] for row in rows_of(table)) for table in (even, odd)] == [[100, 102], [101]]
    assert stored_in(even) == stored_in(odd) == {f"{other.app_id}-0": 2}
    other.close()


def test_a_function_from_frame_to_frame_computes_what_lands_and_one_that_aggregates_is_refused_at_the_start(
    ground: Ground,
) -> None:
    def twice(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("*", "id * 2 AS twice")

    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("id").count()

    settings, options = Settings(kafka=ground.kafka), ground.options(ends_at_latest_offsets=True)
    ground.send(0, range(3))

    with pytest.raises(ConfigError, match="does more than compute columns: Aggregate"):
        Pipeline(options, settings, session=ground.spark, transform=counted, lock=False).start()
    assert not ground.table.exists()
    Pipeline(options, settings, session=ground.spark, transform=twice, lock=False).run()

    assert sorted((row["id"], row["twice"]) for row in rows_of(ground.table)) == [(0, 0), (1, 2), (2, 4)]
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 2}
