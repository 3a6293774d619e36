"""Drivers that are killed, and drivers that meet: real processes, judged by the books of every version."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_faults import books, crash_points, ends, next_offsets, send
from lake_ground import Ground
from lake_process import Driver
from lake_table import log_of
from real_kafka import eventually, settings_for, unique

from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    from penstock.broker import Embedded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Drivers:
    """Processes that start Spark while the test still does other things."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self._kafka, self._folder = kafka, folder
        self._warm: list[Driver] = []
        self._all: list[Driver] = []

    def warm(self) -> None:
        driver = Driver(self._kafka, self._folder / f"driver-{len(self._all)}.log")
        self._warm.append(driver)
        self._all.append(driver)

    def take(self) -> Driver:
        if not self._warm:
            self.warm()
        return self._warm.pop(0)

    def give_back(self, driver: Driver) -> None:
        self._warm.append(driver)

    def end(self) -> None:
        for driver in self._all:
            driver.end()


@pytest.fixture(scope="module")
def drivers(penstock_broker: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(settings_for(penstock_broker.bootstrap), tmp_path_factory.mktemp("drivers"))
    yield made
    made.end()


@pytest.fixture
def ground(penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    # No session here: every driver is a process of its own.
    made = Ground(None, settings_for(penstock_broker.bootstrap), tmp_path)  # type: ignore[arg-type]
    yield made
    made.close()


def batches(ground: Ground, log: str) -> set[int]:
    """The batches that Spark's own log of this name knows."""
    return {int(path.name) for path in (ground.checkpoint / log).iterdir() if path.name.isdigit()}


def unknown_files(ground: Ground) -> int:
    """Data files that no version has."""
    actions = [action for version in log_of(ground.table).values() for action in version]
    known = {action["add"]["path"] for action in actions if "add" in action}
    return sum(path.name not in known for path in ground.table.glob("*.parquet"))


def caught_up(ground: Ground) -> None:
    eventually(lambda: next_offsets(ground) == ends(ground), within_s=180)


# Kills


def test_drivers_killed_between_files_table_and_logs_lose_nothing_and_land_nothing_twice(
    drivers: Drivers, ground: Ground
) -> None:
    options = ground.options(dead_letters=str(ground.dead))

    # The first driver dies with its files written and nothing committed.
    first = drivers.take()
    drivers.warm()
    send(ground, 20)
    assert first.start(options)["is_running"]
    caught_up(ground)
    first.die_at("lake.files_written", with_java=False)
    had = next_offsets(ground)
    send(ground, 20)
    first.died()
    books(ground, is_whole=False).check()
    assert next_offsets(ground) == had
    assert unknown_files(ground) > 0

    # The next one lands that batch, and dies before Spark notes that it did.
    second = drivers.take()
    drivers.warm()
    second.die_at("lake.committed", with_java=True)
    second.start(options)
    second.died()
    books(ground, is_whole=False).check()
    assert next_offsets(ground) != had
    (unlogged,) = batches(ground, "offsets") - batches(ground, "commits")
    versions = list(log_of(ground.table))

    # The third is given the batch once more, drops all of it, and dies before Kafka is told.
    third = drivers.take()
    drivers.warm()
    third.die_at("lake.batch_logged", with_java=False)
    third.start(options)
    third.died()
    assert unlogged in batches(ground, "commits")
    assert list(log_of(ground.table))[: len(versions) + 1] == versions, "the batch was landed a second time"
    books(ground, is_whole=False).check()

    # The fourth makes up for all of them.
    fourth = drivers.take()
    assert fourth.start(options)["is_running"]
    send(ground, 20)
    caught_up(ground)
    eventually(lambda: ground.shown() == ends(ground), within_s=120)
    fourth.stop()
    found = books(ground)
    found.check()
    assert found.rows == 120
    drivers.give_back(fourth)


def test_a_driver_killed_when_it_has_told_kafka_has_told_no_more_than_the_table_has(
    drivers: Drivers, ground: Ground
) -> None:
    options = ground.options(dead_letters=str(ground.dead))
    first = drivers.take()
    drivers.warm()
    send(ground, 20)
    assert ground.shown() == {}
    # Before it starts: of a running one nobody outside knows which batch passes the point next.
    first.die_at("lake.offsets_shown", with_java=True)
    first.start(options)
    first.died()
    shown = ground.shown()
    assert shown
    assert all(at <= next_offsets(ground)[partition] for partition, at in shown.items())
    books(ground, is_whole=False).check()

    last = drivers.take()
    assert last.start(options)["is_running"]
    send(ground, 20)
    caught_up(ground)
    eventually(lambda: ground.shown() == ends(ground), within_s=120)
    last.stop()
    books(ground).check()
    drivers.give_back(last)


@pytest.mark.long
@pytest.mark.parametrize("point", crash_points())
def test_drivers_killed_again_and_again_at_one_point_get_through(drivers: Drivers, ground: Ground, point: str) -> None:
    chance = random.Random(point)
    options = ground.options(dead_letters=str(ground.dead), max_offsets_per_trigger=7)
    for _ in range(3):
        driver = drivers.take()
        drivers.warm()
        driver.die_at(point, with_java=chance.random() < 0.5)
        send(ground, 10)
        driver.start(options)
        driver.died()
        books(ground, is_whole=False).check()
    last = drivers.take()
    last.start(options)
    caught_up(ground)
    last.stop()
    books(ground).check()
    drivers.give_back(last)


# Two drivers


def has_run(driver: Driver, ground: Ground, folder: Path) -> None:
    """Let it land the topic in a table of its own: the first batch of a Java takes long, and longer beside another."""
    options = ground.options(
        app_id=unique("app"), table=str(folder), dead_letters=f"{folder}-dead", ends_at_latest_offsets=True
    )
    assert driver.start(options)["is_running"]
    eventually(lambda: not driver.state()["is_running"], within_s=180)
    assert driver.state()["rows"]


def first_to_end(drivers: list[Driver], feed: Callable[[], None]) -> tuple[str, str]:
    """Feed both until one has ended: its failure, and what it says."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        feed()
        states = [driver.state() for driver in drivers]
        for state in states:
            if not state["is_running"]:
                return str(state.get("failure")), str(state.get("what"))
    raise AssertionError(f"both go on after 60 s: {states}")


@pytest.mark.parametrize("is_same_checkpoint", [False, True])
def test_of_two_drivers_with_one_app_id_one_ends_with_a_named_error_within_a_minute(
    drivers: Drivers, ground: Ground, tmp_path: Path, *, is_same_checkpoint: bool
) -> None:
    both = [drivers.take(), drivers.take()]
    checkpoints = [ground.checkpoint, ground.checkpoint if is_same_checkpoint else tmp_path / "other"]
    send(ground, 5)
    for number, driver in enumerate(both):
        has_run(driver, ground, tmp_path / f"own-{number}")
    for driver, checkpoint in zip(both, checkpoints, strict=True):
        assert driver.start(ground.options(dead_letters=str(ground.dead), checkpoint=str(checkpoint)))["is_running"]
        caught_up(ground)

    def feed() -> None:
        # A batch at a time: a driver that never pauses would leave the other, which has the same to do, no core.
        send(ground, 2)
        caught_up(ground)

    failure, what = first_to_end(both, feed)

    # On one checkpoint Spark's own log may be what notices first.
    assert failure in (("Fenced", "Refused") if is_same_checkpoint else ("Fenced",)), what
    send(ground, 5)
    caught_up(ground)
    for driver in both:
        driver.stop()
        drivers.give_back(driver)
    books(ground).check()
