"""A pipeline in Python holds the locks that `penstock lake run` takes: of two one does not start, or waits."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_ground import Ground, landed
from lake_table import offsets_of
from real_kafka import eventually, recorded_events, settings_for, unique
from real_process import started

from penstock.broker import Embedded
from penstock.errors import Fenced, NotAcquired
from penstock.lake.locks import LockLost
from penstock.lake.options import LakeOptions
from penstock.lake.pipeline import Pipeline
from penstock.lake.running import Run, State
from penstock.lake.status import holders
from penstock.observe.events import LakeLockLost, LakeStreamRestarted
from penstock.settings import ClaimsSettings, Settings
from penstock.values import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HEARTBEAT = "2s"


class LockedGround(Ground):
    """A ground whose pipelines take their locks, through a coordination ledger of its own."""

    def __init__(self, spark: SparkSession, kafka: Embedded, folder: Path, *, claims: str = "") -> None:
        super().__init__(spark, settings_for(kafka.bootstrap), folder, partitions=1)
        ledger = ClaimsSettings(topic=claims or unique("claims"), partitions=1, heartbeat=duration(HEARTBEAT))
        self.settings = Settings(kafka=self.kafka, claims=ledger)
        self._pipelines: list[Pipeline] = []

    def locked(self, *, standby: bool = False, **options: object) -> Pipeline:
        given = self.options(**{"name": options.get("app_id", self.app_id), **options})
        self._pipelines.append(Pipeline(given, self.settings, session=self.spark, standby=standby))
        return self._pipelines[-1]

    def holder(self) -> str | None:
        """Which process has the lock of the app_id."""
        return holders(self.settings, [self.app_id]).get(self.app_id)

    def close(self) -> None:
        for pipeline in self._pipelines:
            pipeline.stop(grace_s=0)
        super().close()


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[LockedGround]:
    made = LockedGround(spark, penstock_broker, tmp_path)
    yield made
    made.close()


def test_in_one_process_an_app_id_runs_once_a_table_is_shared_and_what_ends_gives_its_locks_back(
    ground: LockedGround,
) -> None:
    ground.send(0, range(5))
    first = ground.locked().start()
    landed(first, 5)
    assert ground.holder() is not None

    with pytest.raises(NotAcquired, match=f"two pipelines of this process have the app_id {ground.app_id}"):
        ground.locked().start()
    # Within one process Delta is safe: another app_id lands in the same table.
    other = ground.locked(
        app_id=unique("other"), checkpoint=str(ground.table.parent / "c"), ends_at_latest_offsets=True
    )
    other.run()
    assert other.progress.rows == 5
    ground.send(0, range(5, 8))
    landed(first, 8)

    first.stop()
    assert ground.holder() is None
    second = ground.locked().start()
    assert ground.holder() is not None
    second.stop()
    # A pipeline that does not come up has them no longer than one that ends.
    with pytest.raises(Exception, match="there is no topic"):
        ground.locked(topic="nowhere").start()
    assert ground.holder() is None


# A real run, but for its Spark, which never comes: it takes its locks all the same.
RUN = """
import json, sys, threading
from penstock.lake.options import LakeOptions
from penstock.lake.running import Run
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

given = json.loads(sys.argv[1])
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=given["bootstrap"]),
    claims=ClaimsSettings(topic=given["claims"], partitions=1, heartbeat=duration(given["heartbeat"])),
)
options = LakeOptions.read("orders", given["options"])
run = Run(settings, [options], start_session=threading.Event().wait, stopping=threading.Event())
run.start()
run.jobs[0].wait()
print(type(run.failure()).__name__, run.failure().exit_code, run.failure().what, flush=True)
"""


@contextmanager
def run_of_another_process(ground: LockedGround) -> Iterator[subprocess.Popen[str]]:
    given = {
        "bootstrap": ground.kafka.bootstrap_servers,
        "claims": ground.settings.claims.topic,
        "heartbeat": HEARTBEAT,
        "options": {name: value for name, value in ground.options().items() if name != "name"},
    }
    with started([sys.executable, "-c", RUN, json.dumps(given)], stdout=subprocess.PIPE) as child:
        yield child


def test_a_pipeline_and_a_run_of_another_process_keep_each_other_out_and_a_standby_takes_over(
    ground: LockedGround,
) -> None:
    ground.send(0, range(5))
    with run_of_another_process(ground) as rival:
        eventually(lambda: ground.holder() is not None, within_s=60)
        with pytest.raises(NotAcquired, match=rf"another process \(.*pid{rival.pid}\) has lake/{ground.app_id}") as no:
            ground.locked().run()
        assert no.value.exit_code == 6
        assert not ground.table.exists()

        # A standby that is stopped before its turn has not failed.
        given_up = ground.locked(standby=True)
        waiting = threading.Thread(target=given_up.run)
        waiting.start()
        given_up.stop()
        waiting.join(60)
        assert not waiting.is_alive()
        assert given_up.failure is None

        standby = ground.locked(standby=True)
        waiting = threading.Thread(target=standby.run)
        waiting.start()
        assert not ground.table.exists()
        rival.kill()
        landed_by_then(standby, 5)

    with run_of_another_process(ground) as rival:
        said, _ = rival.communicate(timeout=120)
    assert said.startswith("NotAcquired 6 another process")
    standby.stop()
    waiting.join(60)
    assert standby.failure is None
    assert offsets_of(ground.table) == [(0, offset) for offset in range(5)]


def landed_by_then(pipeline: Pipeline, rows: int) -> None:
    """The same as `landed` for one that does not run yet."""
    eventually(lambda: pipeline.progress.rows >= rows or pipeline.failure is not None, within_s=120)
    landed(pipeline, rows)


def test_who_loses_a_lock_stops_at_once_and_goes_on_when_it_has_it_back(spark: SparkSession, tmp_path: Path) -> None:
    with Embedded() as kafka, recorded_events() as events:
        claims = unique("claims")
        grounds = [LockedGround(spark, kafka, tmp_path / name, claims=claims) for name in ("pipeline", "run")]
        for ground in grounds:
            ground.send(0, range(5))
        pipeline, run = grounds[0].locked().start(), run_of(grounds[1])
        (job,) = run.jobs
        landed(pipeline, 5)
        eventually(lambda: job.progress.rows == 5, within_s=120)

        assert job._pipeline is not None
        held = [pipeline._held, job._pipeline._held]
        kafka.stop(1)  # it answers nothing: nobody can be sure of a lock any more
        eventually(lambda: all(each.lost for each in held), within_s=60)
        with pytest.raises(LockLost) as lost:
            held[0].check()
        assert isinstance(lost.value, Fenced)
        eventually(lambda: restarted(events, grounds[0].app_id), within_s=120)
        kafka.cont(1)

        for ground in grounds:
            ground.send(0, range(5, 8))
        landed_by_then(pipeline, 8)
        eventually(lambda: job.progress.rows == 8 or job.state is State.FAILED, within_s=120)
        assert pipeline._held is not held[0]
        assert [event.pipeline for event in events if isinstance(event, LakeLockLost)] == [grounds[1].app_id]
        pipeline.stop()
        assert run.stop()
        assert (pipeline.failure, run.failure()) == (None, None)
        assert [offsets_of(ground.table) for ground in grounds] == [[(0, offset) for offset in range(8)]] * 2
        for ground in grounds:
            ground.close()


def restarted(events: list[object], name: str) -> bool:
    """Whether the stream was stopped because of a lock."""
    told = [event for event in events if isinstance(event, LakeStreamRestarted) and event.pipeline == name]
    return any("was lost" in event.reason for event in told)


def run_of(ground: LockedGround) -> Run:
    given = {name: value for name, value in ground.options().items() if name != "name"}
    run = Run(
        ground.settings,
        [LakeOptions.read(ground.app_id, given)],
        start_session=lambda: ground.spark,
        stopping=threading.Event(),
    )
    run.start()
    return run
