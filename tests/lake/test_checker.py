"""The checker finds what it is there to find: it is given tables with a hole, a double and wrong offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from lake_checker import Books, Feed, Place, books_of


def places(*offsets: int, partition: int = 0) -> frozenset[Place]:
    return frozenset(Place("orders", partition, offset) for offset in offsets)


def land(
    table: Path, rows: Iterable[Place], stored: Mapping[int, int], *, app_id: str = "shop", prefix: str = "_"
) -> None:
    listed = list(rows)
    write_deltalake(
        str(table),
        Table.from_pydict(
            {
                f"{prefix}topic": Array([each.topic for each in listed], type=DataType.string()),
                f"{prefix}partition": Array([each.partition for each in listed], type=DataType.int32()),
                f"{prefix}offset": Array([each.offset for each in listed], type=DataType.int64()),
            }
        ),
        mode="append",
        commit_properties=CommitProperties(
            app_transactions=[Transaction(f"{app_id}-{partition}", last) for partition, last in stored.items()]
        ),
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Offset 2 is aborted, 3 is bad, 5 is filtered, 6 is aborted; partition 1 has nothing but an aborted record."""
    land(tmp_path / "t", places(0, 1), {0: 1})
    land(tmp_path / "t", places(4), {0: 6, 1: 0})
    land(tmp_path / "dead", places(3), {0: 6, 1: 0}, app_id="shop.dead", prefix="")
    return tmp_path / "t"


FEED = Feed(app_id="shop", visible=places(0, 1, 3, 4, 5), bad=places(3), filtered=places(5))


def judge(table: Path, feed: Feed = FEED) -> Books:
    return books_of(table, feed, dead_letters=table.parent / "dead")


def test_the_checker_finds_nothing_wrong_with_a_right_table(table: Path) -> None:
    found = judge(table)

    found.check()
    assert (found.versions, found.rows) == (2, 3)


@pytest.mark.parametrize(
    ("rows", "stored", "said"),
    [
        (places(8), {0: 8}, "offset=7) is missing, though 8 is stored"),
        (places(4, 7, 8), {0: 8}, "offset=4) is there 2 times"),
        (places(7, 8), {0: 7}, "stored is 7 of orders/0, below its row 8"),
        (places(7, 8), {}, "version 2: rows without offsets"),
        (places(7), {0: 7}, "offset=8) never landed"),
        (places(7), {0: 7}, "offset=8) is behind what is stored in the end, 7"),
        (places(7, 8), {0: 5}, "shop-0 went back from 6 to 5"),
        (places(6, 7, 8), {0: 8}, "offset=6) is a row of no message that should land"),
        (places(3, 7, 8), {0: 8}, "offset=3) is a row of no message that should land"),
        (places(5, 7, 8), {0: 8}, "offset=5) is a row of no message that should land"),
        ([*places(7, 8), *places(0, partition=1)], {0: 8}, "partition=1, offset=0) is a row of no message"),
    ],
)
def test_the_checker_finds_a_planted_fault(
    table: Path, rows: Iterable[Place], stored: Mapping[int, int], said: str
) -> None:
    land(table, rows, stored)
    found = judge(table, Feed(app_id="shop", visible=FEED.visible | places(7, 8), bad=FEED.bad, filtered=FEED.filtered))

    assert [problem for problem in found.problems if said in problem], found.problems


def test_the_checker_finds_a_fault_that_later_versions_mend(table: Path) -> None:
    land(table, places(8), {0: 8})
    land(table, places(7), {0: 8})
    found = judge(table, Feed(app_id="shop", visible=FEED.visible | places(7, 8), bad=FEED.bad, filtered=FEED.filtered))

    assert found.problems == ["version 2: Place(topic='orders', partition=0, offset=7) is missing, though 8 is stored"]


def test_the_checker_finds_rows_that_went_away(table: Path) -> None:
    DeltaTable(str(table)).delete("_offset = 1")

    assert "version 2: Place(topic='orders', partition=0, offset=1) was there before" in judge(table).problems


@pytest.mark.parametrize(
    ("rows", "stored", "said"),
    [
        (places(3), {0: 6}, "offset=3) is there 2 times"),
        (places(4), {0: 6}, "offset=4) is a row of no message"),
        (places(), {0: 8}, "offset=7) is missing, though 8 is stored"),
        (places(), {}, "offset=7) never landed"),
    ],
)
def test_the_checker_finds_a_fault_in_the_dead_letters(
    table: Path, rows: Iterable[Place], stored: Mapping[int, int], said: str
) -> None:
    land(table.parent / "dead", rows, stored, app_id="shop.dead", prefix="")
    land(table, [], {0: 8})
    bad = places(3, 7)
    found = judge(table, Feed(app_id="shop", visible=FEED.visible | bad, bad=bad, filtered=FEED.filtered))

    assert [problem for problem in found.problems if said in problem and "dead letters" in problem], found.problems
