"""Python's garbage collector while records are read: at rest, and never left so."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from penstock.kafka.reader import CollectorHeldBack


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_rests_until_the_last_reader_is_done_and_is_then_as_before(*, is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    held_back = CollectorHeldBack()

    held_back.begin()
    held_back.begin()
    assert not gc.isenabled()
    held_back.end()
    assert not gc.isenabled()
    held_back.end()
    assert gc.isenabled() is is_on

    held_back.begin()
    held_back.end()
    assert gc.isenabled() is is_on
