from __future__ import annotations

from typing import get_type_hints

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import __version__
from penstock.observe.events import (
    BrokerStarted,
    Event,
    HandlersReturned,
    RecordIgnored,
    SnapshotWritten,
    subscribed,
    tell,
)
from penstock.observe.metrics import COUNTED, MEASURED, Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_event_is_counted_by_kind_and_those_that_matter_by_name() -> None:
    metrics = Metrics()
    with subscribed(metrics):
        for offset in range(3):
            tell(RecordIgnored(ledger="orders", partition=0, offset=offset, reason="junk"))

    assert value(metrics, "penstock_ledger_records_ignored_total", ledger="orders") == 3
    assert value(metrics, "penstock_events_total", event="record_ignored") == 3


def test_the_newest_size_and_the_spread_of_times_are_kept() -> None:
    metrics = Metrics()
    for size_bytes in (10, 30):
        metrics(SnapshotWritten(ledger="orders", partition=1, offset=9, parts=1, size_bytes=size_bytes))
    metrics(BrokerStarted(node=1, bootstrap="b", pid=1, seconds=3.0))

    assert value(metrics, "penstock_ledger_snapshot_bytes", ledger="orders") == 30
    assert value(metrics, "penstock_broker_start_seconds_bucket", le="2.0") == 0
    assert value(metrics, "penstock_broker_start_seconds_bucket", le="4.0") == 1


def test_an_event_that_nobody_foresaw_is_counted_all_the_same() -> None:
    class SomethingNew(Event):
        pass

    metrics = Metrics()
    metrics(SomethingNew())

    assert value(metrics, "penstock_events_total", event="something_new") == 1


def test_the_build_is_told() -> None:
    assert value(Metrics(), "penstock_build_info", version=__version__) == 1


def test_the_exposition_is_what_prometheus_reads() -> None:
    families = {family.name for family in text_string_to_metric_families(Metrics().exposition().decode())}

    assert {"penstock_build_info", "penstock_broker_start_seconds"} <= families


@pytest.mark.parametrize("kind", [*COUNTED, *MEASURED])
def test_labels_and_measures_are_fields_of_their_event(kind: type[Event]) -> None:
    fields = set(get_type_hints(kind))

    assert kind not in COUNTED or set(COUNTED[kind].labels) <= fields
    for measured in MEASURED.get(kind, ()):
        assert {measured.field, *measured.labels, *filter(None, [measured.times])} <= fields


def test_counters_end_in_total_and_measures_in_their_unit() -> None:
    assert all(counted.name.endswith("_total") for counted in COUNTED.values())
    all_measured = [measured for together in MEASURED.values() for measured in together]
    counts = ("count", "ready", "leased", "waiting", "version", "lag_messages")
    with_unit = [measured for measured in all_measured if measured.field not in counts]
    assert with_unit
    assert all(measured.name.endswith(("_seconds", "_bytes")) for measured in with_unit)


def test_a_value_that_was_seen_often_is_told_once_and_counts_as_often() -> None:
    metrics = Metrics()
    metrics(HandlersReturned(queue="orders", count=256, seconds=0.002))
    metrics(HandlersReturned(queue="orders", count=1, seconds=7_200.0))

    name = "penstock_message_handler_seconds"
    assert value(metrics, f"{name}_bucket", queue="orders", le="0.001") == 0
    assert value(metrics, f"{name}_bucket", queue="orders", le="0.0025") == 256
    assert value(metrics, f"{name}_bucket", queue="orders", le="3600.0") == 256
    assert value(metrics, f"{name}_bucket", queue="orders", le="+Inf") == 257
    assert value(metrics, f"{name}_count", queue="orders") == 257
    assert value(metrics, f"{name}_sum", queue="orders") == pytest.approx(7_200.512)


def test_two_listeners_in_one_process_do_not_share_their_counts() -> None:
    first, second = Metrics(), Metrics()
    first(RecordIgnored(ledger="orders", partition=0, offset=0, reason="junk"))

    assert value(second, "penstock_ledger_records_ignored_total", ledger="orders") is None
