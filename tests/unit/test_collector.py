"""Python's garbage collector while records are read and worked on: held back, and never left so."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from penstock.collector import AtRest, Seldom


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_on, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    (gc.enable if was_on else gc.disable)()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_rests_until_the_last_reader_is_done_and_is_then_as_before(*, is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    at_rest = AtRest()

    at_rest.begin()
    at_rest.begin()
    assert not gc.isenabled()
    at_rest.end()
    assert not gc.isenabled()
    at_rest.end()
    assert gc.isenabled() is is_on

    at_rest.begin()
    at_rest.end()
    assert gc.isenabled() is is_on


@pytest.mark.parametrize(("young", "seldom"), [(700, Seldom.YOUNG_MAX), (10**6, 10**6), (0, 0)])
def test_new_objects_are_looked_at_seldom_until_the_last_queue_ends(young: int, seldom: int) -> None:
    gc.set_threshold(young, 11, 12)
    arrangement = Seldom()

    arrangement.begin()
    arrangement.begin()
    assert gc.get_threshold() == (seldom, 11, 12)
    arrangement.end()
    assert gc.get_threshold() == (seldom, 11, 12)
    arrangement.end()
    assert gc.get_threshold() == (young, 11, 12)


def test_what_somebody_else_set_meanwhile_stays() -> None:
    gc.set_threshold(700, 10, 10)
    arrangement = Seldom()
    arrangement.begin()
    gc.set_threshold(1_234, 5, 6)
    arrangement.end()
    assert gc.get_threshold() == (1_234, 5, 6)


def test_garbage_in_circles_is_still_found() -> None:
    gc.enable()
    gc.set_threshold(700, 10, 10)
    runs: list[int] = []
    gc.callbacks.append(note := lambda phase, info: runs.append(info["generation"]) if phase == "start" else None)
    arrangement = Seldom()
    arrangement.begin()
    try:
        for _ in range(Seldom.YOUNG_MAX + 1_000):
            circle: list[object] = []
            circle.append(circle)
        assert runs
    finally:
        arrangement.end()
        gc.callbacks.remove(note)
