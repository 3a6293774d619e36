"""The option `maintenance` of a run: small files become large ones beside landing. A real broker, a real Spark."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake_ground import Ground
from lake_table import log_of, offsets_of, operations_of, stored_in
from real_kafka import eventually, settings_for, unique

from penstock.lake.options import LakeOptions
from penstock.lake.running import Run, State
from penstock.observe.events import (
    LakeLanded,
    LakeMaintained,
    LakeMaintenanceFailed,
    LakePipelineStarted,
    LakeStreamRestarted,
    subscribed,
)
from penstock.settings import ClaimsSettings, Settings
from penstock.values import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.broker import Embedded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LIMIT_S = 180.0


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(spark, settings_for(penstock_broker.bootstrap), tmp_path)
    yield made
    made.close()


@contextmanager
def running(ground: Ground, **given: object) -> Iterator[Run]:
    """As `penstock lake run` has it, with its locks."""
    claims = ClaimsSettings(topic=unique("claims"), partitions=1, heartbeat=duration("3s"))
    options = ground.options(**given)
    run = Run(
        Settings(kafka=ground.kafka, claims=claims),
        [LakeOptions.read(str(options.pop("name")), options)],
        start_session=lambda: ground.spark,
        stopping=threading.Event(),
    )
    run.start()
    try:
        yield run
    finally:
        assert run.stop()


@contextmanager
def timed_events() -> Iterator[list[tuple[float, Any]]]:
    events: list[tuple[float, Any]] = []
    with subscribed(lambda event: events.append((time.monotonic(), event))):
        yield events


def has_landed_during_maintenance(events: list[tuple[float, Any]]) -> bool:
    landed = [at for at, event in events if isinstance(event, LakeLanded)]
    return any(
        at - event.seconds < when < at for at, event in events if isinstance(event, LakeMaintained) for when in landed
    )


def files_in(table: Path, folder: str) -> set[str]:
    """The files of a partition in the newest version."""
    files: set[str] = set()
    for actions in log_of(table).values():
        files -= {action["remove"]["path"] for action in actions if "remove" in action}
        files |= {action["add"]["path"] for action in actions if "add" in action}
    return {path for path in files if path.startswith(f"{folder}/")}


def stray(table: Path, folder: str, *, hours_old: float) -> Path:
    """A file that no version has, as a batch that was given up leaves it, or one that is under way has it."""
    path = table / folder / f"part-{hours_old}.parquet"
    path.write_bytes(b"nothing")
    at = time.time() - hours_old * 3_600
    os.utime(path, (at, at))
    return path


def test_a_closed_partition_becomes_one_file_beside_a_landing_that_goes_on(ground: Ground) -> None:
    given = {"transforms": {"closed": "id < 1000"}, "partition_by": ["closed"], "min_bytes_per_file": 100_000}
    for each in range(4):
        ground.send(0, [each])
        ground.land(**given)
    assert len(files_in(ground.table, "closed=true")) == 4
    old, young = (stray(ground.table, "closed=true", hours_old=hours) for hours in (2, 0.5))
    sent = 0

    def sending_until(is_so: Callable[[], object]) -> None:
        def is_so_after_one_more() -> object:
            nonlocal sent
            ground.send(1, [1_000 + sent])
            sent += 1
            return is_so()

        eventually(is_so_after_one_more, within_s=LIMIT_S)

    def removed() -> list[int]:
        told = [event for _, event in events if isinstance(event, LakeMaintained)]
        return [event.files_removed for event in told if event.files_removed]

    with timed_events() as events, running(ground, maintenance="2s", vacuum_after="0s", **given) as run:
        (job,) = run.jobs
        sending_until(lambda: has_landed_during_maintenance(events))
        sending_until(lambda: len(files_in(ground.table, "closed=true")) == 1)
        sending_until(removed)
        eventually(lambda: job.progress.rows == sent, within_s=LIMIT_S)
        assert job.state is State.RUNNING

    assert run.failure() is None
    kinds = [type(event) for _, event in events]
    assert kinds.count(LakePipelineStarted) == 1
    assert LakeStreamRestarted not in kinds
    assert LakeMaintenanceFailed not in kinds
    assert removed() == [1]
    assert not old.exists()
    # It may be of a batch under way.
    assert young.exists()
    assert offsets_of(ground.table) == [*((0, each) for each in range(4)), *((1, each) for each in range(sent))]
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 3, f"{ground.app_id}-1": sent - 1}
    assert ground.shown() == {0: 4, 1: sent}
    assert {"OPTIMIZE", "VACUUM END"} <= set(operations_of(ground.table))


def test_a_stop_amid_maintenance_gives_it_up_and_nobody_writes_afterwards(ground: Ground) -> None:
    folders = 15
    given = {"transforms": {"folder": f"id % {folders}"}, "partition_by": ["folder"], "min_bytes_per_file": 100_000}
    for each in range(2):
        ground.send(0, range(each * folders, (each + 1) * folders))
        ground.land(**given)

    with timed_events() as events, running(ground, maintenance="1s", **given) as run:
        eventually(lambda: "OPTIMIZE" in operations_of(ground.table), within_s=LIMIT_S)
        assert run.stop()
        at_work = [each.name for each in threading.enumerate() if each.name.startswith("lake-care")]
        versions = len(log_of(ground.table))

    assert at_work == []
    assert run.failure() is None
    assert not [event for _, event in events if isinstance(event, LakeMaintenanceFailed | LakeMaintained)]
    assert operations_of(ground.table).count("OPTIMIZE") < folders
    ground.send(0, range(2 * folders, 2 * folders + 5))
    ground.land(**given)
    assert len(log_of(ground.table)) == versions + 1
    assert offsets_of(ground.table) == [(0, each) for each in range(2 * folders + 5)]
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 2 * folders + 4}
