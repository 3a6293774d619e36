"""What a pipeline must hold: one name for one table, however it is written, in an order that everybody keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.lake.locks import locks_of, normalised, table_lock
from penstock.lake.options import LakeOptions
from penstock.values import checked_name


def options(**given: object) -> LakeOptions:
    return LakeOptions.read("orders", {"app_id": "app", "topic": "orders", "table": "/lake/orders", **given})


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("/lake/orders/", "/lake/orders"),
        ("/lake//orders", "/lake/orders"),
        ("/lake/x/../orders", "/lake/orders"),
        ("file:/lake/orders", "/lake/orders"),
        ("file:///lake/orders/", "/lake/orders"),
        ("s3://bucket/orders/", "s3a://bucket/orders"),
        ("S3N://bucket//orders", "s3a://bucket/orders"),
        ("abfss://box@account.example/orders/", "abfss://box@account.example/orders"),
    ],
)
def test_one_table_has_one_place_however_it_is_written(written: str, place: str) -> None:
    assert normalised(written) == place
    assert table_lock(written) == table_lock(place)


def test_a_link_to_a_table_is_that_table(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "orders")

    assert table_lock(str(tmp_path / "link")) == table_lock(str(tmp_path / "orders"))


def test_tables_of_the_same_name_have_locks_of_different_names_that_are_allowed() -> None:
    names = [table_lock(place).name for place in ("/a/orders", "/b/orders", f"/a/{'ü' * 200}", "s3a://bucket")]

    assert len(set(names)) == 4
    assert names[0].startswith("orders-")
    assert [checked_name("lock", name) for name in names] == names


def test_the_app_id_and_every_table_are_held_always_in_the_same_order() -> None:
    route = [{"table": "/lake/b", "condition": "x"}, {"table": "/lake/a", "condition": "y"}]

    held = locks_of(options(route=route, dead_letters="/lake/dead"))

    assert str(held[0]) == "lake/app"
    assert set(held[1:]) == {table_lock(f"/lake/{name}") for name in ("orders", "a", "b", "dead")}
    assert list(held[1:]) == sorted(held[1:])
