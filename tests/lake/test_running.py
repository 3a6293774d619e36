"""The locks of pipelines on a real broker, and a run whose Spark does not come up. No Spark is started here."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from real_kafka import eventually, recorded_events, settings_for, unique

from penstock.broker import Embedded
from penstock.errors import NotAcquired, Unavailable
from penstock.lake.locks import Locks, locks_of, table_lock
from penstock.lake.operating import alone_with
from penstock.lake.options import LakeOptions
from penstock.lake.running import Run, State
from penstock.lake.status import holders
from penstock.observe.events import LakePipelineFailed
from penstock.settings import ClaimsSettings, Settings
from penstock.values import duration


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    claims = ClaimsSettings(topic=unique("claims"), partitions=1, heartbeat=duration("2s"))
    return Settings(kafka=settings_for(penstock_broker.bootstrap), claims=claims)


def options(folder: Path, name: str = "orders", **given: object) -> LakeOptions:
    return LakeOptions.read(name, {"app_id": name, "topic": "t", "table": str(folder / "table"), **given})


def test_one_process_lands_in_a_table_and_a_standby_takes_over(settings: Settings, tmp_path: Path) -> None:
    ours, rival = options(tmp_path), options(tmp_path, "rival")
    first, second = Locks(settings), Locks(settings)
    has_it, may_end = threading.Event(), threading.Event()

    def stand_by() -> None:
        with second.held(locks_of(rival), is_standby=True):
            has_it.set()
            may_end.wait(60)

    waiting = threading.Thread(target=stand_by)
    with first.held(locks_of(ours)) as held:
        assert held.lost is None
        assert list(holders(settings, ["orders", "rival"])) == ["orders"]
        # Another app_id has a name of its own, but not the table.
        with pytest.raises(NotAcquired, match=rf"another process \(.*\) has {table_lock(ours.table)}"):
            second.held(locks_of(rival)).__enter__()
        with (
            pytest.raises(NotAcquired, match="pipeline orders is at work"),
            alone_with(settings, ours, next_step="wait"),
        ):
            pytest.fail("it was alone with a pipeline at work")
        # Pipelines of one process share a table; within it Delta is safe.
        with first.held(locks_of(options(tmp_path, "other"))):
            pass
        waiting.start()
        assert not has_it.wait(3)
    assert has_it.wait(60)
    may_end.set()
    waiting.join(60)


def test_waiting_for_a_lock_ends_when_it_is_given_up(settings: Settings, tmp_path: Path) -> None:
    names, given_up = locks_of(options(tmp_path)), threading.Event()
    with Locks(settings).held(names):
        threading.Timer(1.0, given_up.set).start()
        with pytest.raises(NotAcquired):
            Locks(settings).held(names, is_standby=True, given_up=given_up.is_set).__enter__()


def test_without_spark_every_pipeline_fails_with_the_same_and_gives_its_locks_back(
    settings: Settings, tmp_path: Path
) -> None:
    pipelines = [options(tmp_path / name, name) for name in ("a", "b")]
    missing = Unavailable("Spark is not installed", next_step="pip install 'penstock[lake]'")

    def no_session() -> None:
        raise missing

    run = Run(settings, pipelines, start_session=no_session, stopping=threading.Event())  # type: ignore[arg-type]
    with recorded_events() as events:
        run.start()
        eventually(lambda: run.is_over, within_s=60)

    assert run.failure() is missing
    assert {job.state for job in run.jobs} == {State.FAILED}
    assert sum(isinstance(event, LakePipelineFailed) for event in events) == 2
    assert run.stop()
    with Locks(settings).held(locks_of(pipelines[0])):
        pass


def test_a_run_that_is_stopped_before_spark_is_there_ends_without_a_failure(settings: Settings, tmp_path: Path) -> None:
    stopping, never = threading.Event(), threading.Event()

    def slow_session() -> None:
        never.wait(60)
        raise Unavailable("too late")

    run = Run(
        replace(settings),
        [options(tmp_path)],
        start_session=slow_session,  # type: ignore[arg-type]
        stopping=stopping,
        grace_s=1,
    )
    run.start()
    stopping.set()

    assert run.stop()
    assert run.failure() is None
    assert run.session is None
    never.set()
