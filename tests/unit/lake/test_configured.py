"""Which pipelines there are: by the configuration, and by an app."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigError, NotFound, UsageError
from penstock.lake.configured import pipelines_of
from penstock.settings import KafkaSettings, LakeSettings, Settings

PIPELINES = {
    "orders": {"app_id": "a", "topic": "orders", "table": "lake/orders"},
    "events": {"app_id": "b", "topic": "events", "table": "lake/events"},
}


def test_a_pipeline_is_found_by_its_name_and_all_without_one() -> None:
    lake = LakeSettings(pipelines=PIPELINES, folder=Path("/data"))

    assert [one.table for one in pipelines_of(lake)] == ["/data/lake/orders", "/data/lake/events"]
    assert [one.app_id for one in pipelines_of(lake, "events")] == ["b"]
    with pytest.raises(NotFound, match="did you mean orders"):
        pipelines_of(lake, "order")


def test_two_pipelines_with_one_app_id_are_refused_whichever_is_asked_for() -> None:
    lake = LakeSettings(pipelines={**PIPELINES, "more": {**PIPELINES["orders"], "table": "lake/more"}})

    with pytest.raises(ConfigError, match="have the same app_id a"):
        pipelines_of(lake, "events")


def test_without_pipelines_it_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"add \[lake\.orders\]"):
        pipelines_of(LakeSettings())


def test_an_app_names_its_pipelines_after_itself_unless_told_otherwise() -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        lake=LakeSettings(pipelines={"orders": {"topic": "orders", "table": "x"}}, folder=Path("/data")),
    )
    app = penstock.App("shop", settings=settings)

    assert app.lake("orders").options.app_id == "shop.orders"
    assert app.lake("orders", table="/other", app_id="mine").options.table == "/other"
    assert app.lake("new", topic="t", table="/new").options.app_id == "shop.new"
    with pytest.raises(ConfigError, match="has no topic"):
        app.lake("nothing", table="/new")


def test_who_wants_no_lock_cannot_wait_for_one() -> None:
    app = penstock.App("shop", settings=Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1")))

    with pytest.raises(UsageError, match="nothing to wait for"):
        app.lake("orders", topic="t", table="/new", lock=False, standby=True)
