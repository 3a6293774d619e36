"""Everything that may go wrong between a topic and its table, judged by the books of every version of it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_checker import books_of, feed_of
from lake_faults import (
    Died,
    books,
    clear,
    crash_points,
    die,
    ends,
    messages_of,
    next_offsets,
    once_at,
    send,
    transactional,
    within_transaction,
)
from lake_ground import Ground, ended, landed
from lake_table import log_of, operations_of, rows_of
from real_kafka import eventually, settings_for

import penstock.lake.pipeline
from penstock.broker import Embedded
from penstock.crash import armed
from penstock.errors import Gap, PenstockError, Refused, Restored
from penstock.kafka.topics import TopicSpec
from penstock.lake.pipeline import Pipeline
from penstock.lake.preparing import Start, start_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(spark, settings_for(penstock_broker.bootstrap), tmp_path)
    yield made
    clear(made)


def land(ground: Ground, **options: object) -> Pipeline:
    return ground.land(dead_letters=str(ground.dead), **options)


def caught_up(ground: Ground, pipeline: Pipeline) -> None:
    """Until the batch that has the last message is over, also for the pipeline itself."""

    def is_so() -> bool:
        stored = {each.partition: last + 1 for each, last in pipeline.progress.stored.items()}
        return not pipeline.is_running or stored == ends(ground)

    eventually(is_so, within_s=180)
    assert pipeline.failure is None
    assert next_offsets(ground) == ends(ground)


# Deaths, and what becomes of checkpoints


def test_a_run_that_dies_at_any_crash_point_is_made_up_for_by_the_next_with_or_without_its_checkpoint(
    ground: Ground,
) -> None:
    points = crash_points()
    assert {"lake.files_written", "lake.committed", "lake.batch_logged", "lake.offsets_shown"} <= set(points)
    for number, point in enumerate(points):
        send(ground, 3)
        with once_at(point, die) as waiting, pytest.raises(PenstockError):
            land(ground)
        assert not waiting, f"{point} was not passed"
        books(ground, is_whole=False).check()
        if number % 2:
            shutil.rmtree(ground.checkpoint)
            # A batch of other bounds than the one that died.
            send(ground, 1)
        if number % 3 == 2:
            land(ground)
            books(ground).check()

    land(ground)
    books(ground).check()
    assert ground.shown() == next_offsets(ground) == ends(ground)


def test_a_checkpoint_that_overlaps_the_table_in_part_lands_the_rest(ground: Ground, tmp_path: Path) -> None:
    send(ground, 5)
    land(ground)
    shutil.copytree(ground.checkpoint, tmp_path / "old")
    send(ground, 5)
    land(ground)
    shutil.rmtree(ground.checkpoint)
    shutil.copytree(tmp_path / "old", ground.checkpoint)
    send(ground, 5)

    again = land(ground)

    assert again.progress.rows == 10
    assert again.progress.batches == 1, "one batch had both: what the table has, and what it has not"
    books(ground).check()


def test_a_table_that_is_older_than_its_checkpoint_stops_with_the_exact_range(ground: Ground, tmp_path: Path) -> None:
    send(ground, 5, poison=False)
    checkpoint = tmp_path / "checkpoint"
    ground.land(checkpoint=str(checkpoint))
    shutil.copytree(ground.table, tmp_path / "backup")
    send(ground, 5, poison=False)
    ground.land(checkpoint=str(checkpoint))
    # Another place: within one process Delta goes on with what it knows of a log.
    ground.table = tmp_path / "backup"
    send(ground, 5, poison=False)

    with pytest.raises(Gap) as gap:
        ground.land(checkpoint=str(checkpoint))

    assert (gap.value.first, gap.value.last) == (5, 9)
    books(ground, is_whole=False).check()
    ground.land(checkpoint=str(tmp_path / "new"))
    books(ground).check()


def test_a_gap_in_the_first_batch_of_a_checkpoint_stops_it(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    send(ground, 5, poison=False)
    ground.land()
    shutil.rmtree(ground.checkpoint)
    send(ground, 5, poison=False)

    def too_late(*given: object) -> Start:
        start = start_of(*given)  # type: ignore[arg-type]
        return replace(start, starts={each: at + 2 for each, at in start.starts.items()})

    with monkeypatch.context() as patched:
        patched.setattr(penstock.lake.pipeline, "start_of", too_late)
        with pytest.raises(Gap) as gap:
            ground.land()

    assert (gap.value.first, gap.value.last) == (5, 6)
    books(ground, is_whole=False).check()
    assert next_offsets(ground) == {0: 5, 1: 5}


# Kafka


def test_what_retention_deleted_unread_stops_the_run_with_the_exact_range(ground: Ground) -> None:
    send(ground, 10)
    before = messages_of(ground)
    pipeline = ground.pipeline(dead_letters=str(ground.dead)).start()
    caught_up(ground, pipeline)

    def delete_unread() -> None:
        send(ground, 10)
        before.update(messages_of(ground))
        ground.admin.cut(ground.at(0), 15)

    # While a batch is under way, what comes after it goes.
    with once_at("lake.committed", delete_unread):
        ground.send(0, [1])
        before.update(messages_of(ground))
        gone = ended(pipeline)
    assert isinstance(gone, Gap)
    assert (gone.topic, gone.partition, gone.first, gone.last) == (ground.topic, 0, 11, 14)
    books(ground, messages=before, is_whole=False).check()

    # The same at a start, with the checkpoint and without it.
    for _ in range(2):
        with pytest.raises(Gap) as gap:
            land(ground)
        assert (gap.value.first, gap.value.last) == (11, 14)
        shutil.rmtree(ground.checkpoint, ignore_errors=True)
    books(ground, messages=before, is_whole=False).check()


def test_aborted_transactions_are_invisible_and_their_offsets_are_passed(ground: Ground) -> None:
    ground.admin.grow(ground.topic, 4)
    send(ground, 2, poison=False)
    with transactional(ground) as producer:
        within_transaction(producer, ground, [0, 1], end="commit")
        within_transaction(producer, ground, [0, 1, 2], end="abort")
        within_transaction(producer, ground, [1], end="commit")
    ground.admin.grow(ground.topic, 5)
    with transactional(ground) as producer:
        # An aborted tail, and a partition with nothing else.
        within_transaction(producer, ground, [1, 4], end="abort")
    land(ground)
    books(ground).check()
    assert next_offsets(ground) == ends(ground)
    assert next_offsets(ground)[4] == 4

    with transactional(ground) as producer:
        within_transaction(producer, ground, [0, 4])
        ground.send_raw(4, b"poison behind an open transaction")
        shutil.rmtree(ground.checkpoint)
        land(ground)
        books(ground, is_whole=True).check()
        assert next_offsets(ground)[4] == 4, "nothing behind an open transaction is visible"
        producer.commit_transaction(30)
    land(ground)
    books(ground).check()
    assert next_offsets(ground) == ends(ground)


def test_an_empty_topic_ends_at_once_or_waits(ground: Ground) -> None:
    assert land(ground).progress.version == -1
    pipeline = ground.pipeline(dead_letters=str(ground.dead)).start()
    send(ground, 2)
    caught_up(ground, pipeline)
    pipeline.stop()

    assert land(ground).progress.version == -1
    books(ground).check()


def test_a_topic_that_was_made_anew_is_refused(ground: Ground) -> None:
    send(ground, 5, poison=False)
    ground.land()
    ground.admin.delete([ground.topic])
    eventually(lambda: ground.topic not in ground.admin.names())
    ground.admin.create([TopicSpec(name=ground.topic, partitions=2, config={}, reason="a test")])
    ground.send(0, [1])

    for _ in range(2):
        with pytest.raises(Refused, match="not the topic that the table was filled from"):
            ground.land()
        shutil.rmtree(ground.checkpoint, ignore_errors=True)
    assert len(rows_of(ground.table)) == 10


def test_a_stream_outlives_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    with Embedded() as kafka:
        ground = Ground(spark, settings_for(kafka.bootstrap), tmp_path)
        send(ground, 5)
        pipeline = ground.pipeline(dead_letters=str(ground.dead)).start()
        caught_up(ground, pipeline)
        kafka.kill(1)
        kafka.start(1)
        send(ground, 5)
        caught_up(ground, pipeline)
        pipeline.stop()
        books(ground).check()
        ground.close()


# Other writers of the table


@pytest.fixture
def quick_vacuum(spark: SparkSession) -> Iterator[None]:
    """For a handful of files, and also for those that were needed a moment ago."""
    settings = {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.retentionDurationCheck.enabled": "false"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.usefixtures("quick_vacuum")
def test_a_running_stream_stands_new_partitions_new_columns_optimize_and_vacuum_at_any_moment(ground: Ground) -> None:
    pipeline = ground.pipeline(dead_letters=str(ground.dead)).start()
    table = f"delta.`{ground.table}`"
    changes = [
        ("lake.files_written", f"ALTER TABLE {table} ADD COLUMN other STRUCT<a: INT>"),
        ("lake.dead_letters_committed", f"ALTER TABLE {table} ADD COLUMN third INT"),
        ("lake.files_written", f"OPTIMIZE {table}"),
        ("lake.dead_letters_committed", f"OPTIMIZE {table}"),
        ("lake.files_written", f"VACUUM {table}"),
        ("lake.committed", f"OPTIMIZE {table}"),
    ]
    for number, (point, change) in enumerate(changes):
        if number in (1, 3):
            ground.admin.grow(ground.topic, 2 + number)
        with once_at(point, lambda change=change: ground.spark.sql(change)) as waiting:  # type: ignore[misc]
            send(ground, 3)
            caught_up(ground, pipeline)
        assert not waiting, change
        assert pipeline.is_running
    books(ground).check()

    # Files that no version needs any more go, while the stream is idle.
    ground.spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    vacuumed = max(log_of(ground.table))
    send(ground, 3)
    caught_up(ground, pipeline)
    pipeline.stop()
    books(ground, readable_from=vacuumed).check()
    assert operations_of(ground.table).count("OPTIMIZE") == 3
    assert operations_of(ground.table).count("VACUUM END") == 2


def test_a_column_that_gets_another_type_keeps_the_table_readable(ground: Ground) -> None:
    table = f"delta.`{ground.table}`"

    def is_bad(value: bytes | None) -> bool:
        return value != b'{"id": 1, "name": "n"}'

    def retype(kind: str) -> None:
        as_other = ground.spark.sql(f"SELECT *, cast(id AS {kind}) AS new FROM {table}").drop("id")
        renamed = as_other.withColumnRenamed("new", "id")
        renamed.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(ground.table))

    good, large = b'{"id": 1, "name": "n"}', b'{"id": 5000000000, "name": "n"}'
    pipeline = ground.pipeline(dead_letters=str(ground.dead)).start()
    ground.send_raw(0, good)
    caught_up(ground, pipeline)
    # The large one was a row of the batch, until the column became too narrow for it.
    with once_at("lake.dead_letters_committed", lambda: retype("INT")) as waiting:
        ground.send_raw(0, b"poison", large, good)
        caught_up(ground, pipeline)
    assert not waiting
    pipeline.stop()
    books(ground, is_bad=is_bad, is_late=lambda value: value == large).check()

    ground.send_raw(0, large, good)
    land(ground)
    books(ground, is_bad=is_bad, is_late=lambda value: value == large).check()
    retype("STRING")
    ground.send_raw(0, good)
    land(ground)
    books(ground, is_bad=is_bad, is_late=lambda value: value == large).check()
    assert {row["id"] for row in rows_of(ground.table)} == {"1"}


def test_a_restore_stops_the_run_whenever_it_happens(ground: Ground) -> None:
    send(ground, 3)
    pipeline = ground.pipeline(dead_letters=str(ground.dead)).start()
    caught_up(ground, pipeline)
    send(ground, 3)
    caught_up(ground, pipeline)
    restore = f"RESTORE TABLE delta.`{ground.table}` TO VERSION AS OF 1"
    first = next_offsets(ground)

    # While it is idle.
    ground.spark.sql(restore)
    restored = max(log_of(ground.table))
    send(ground, 3)
    assert isinstance(ended(pipeline), Restored)
    assert next_offsets(ground) == first
    for _ in range(2):
        with pytest.raises(Restored) as stopped:
            land(ground)
        assert stopped.value.version == restored
        shutil.rmtree(ground.checkpoint, ignore_errors=True)

    # The offsets are set back as well, and everything lands again.
    ground.delta().store(ground.naming, {ground.at(0): 2, ground.at(1): 3})
    land(ground)
    books(ground, kept_from=restored + 1, readable_from=restored + 1).check()


def test_a_restore_in_the_middle_of_a_batch_is_not_overlooked_by_a_restart(ground: Ground) -> None:
    send(ground, 3, poison=False)
    ground.land()
    send(ground, 3, poison=False)
    ground.land()
    send(ground, 3, poison=False)

    def restore_and_die(point: str) -> None:
        if point == "lake.files_written":
            ground.spark.sql(f"RESTORE TABLE delta.`{ground.table}` TO VERSION AS OF 1")
        if point == "lake.committed":
            raise Died("died here")

    with armed(restore_and_die), pytest.raises(PenstockError):
        ground.land()

    for _ in range(2):
        send(ground, 1, poison=False)
        with pytest.raises(Restored):
            ground.land()
        shutil.rmtree(ground.checkpoint, ignore_errors=True)


def test_two_app_ids_land_in_one_table_at_the_same_time(ground: Ground, tmp_path: Path) -> None:
    other = Ground(ground.spark, ground.kafka, tmp_path)
    send(ground, 5)
    send(other, 5)
    # Both make the table, and both make the dead letters.
    pipelines = [each.pipeline(name=each.app_id, dead_letters=str(ground.dead)) for each in (ground, other)]
    starting = [threading.Thread(target=each.start) for each in pipelines]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    for _ in range(3):
        send(ground, 3)
        send(other, 3)
    for pipeline in pipelines:
        landed(pipeline, 28)
    eventually(lambda: all(pipeline.progress.lag == 0 for pipeline in pipelines), within_s=120)
    for pipeline in pipelines:
        pipeline.stop()

    assert [pipeline.failure for pipeline in pipelines] == [None, None]
    feeds = [feed_of(each.app_id, messages_of(each)) for each in (ground, other)]
    books_of(ground.table, *feeds, dead_letters=ground.dead).check()
    other.close()
