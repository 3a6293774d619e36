"""How large batches are."""

from __future__ import annotations

from penstock.lake.options import LakeOptions
from penstock.lake.sizing import has_outgrown, sizing


def options(**given: object) -> LakeOptions:
    return LakeOptions.read("orders", {"app_id": "orders", "topic": "orders", "table": "lake/orders", **given})


def test_a_batch_waits_for_one_file_of_the_wanted_size_per_core() -> None:
    found = sizing(options(min_bytes_per_file=10_000_000), cores=4, bytes_per_row=80)

    assert found.messages_min == 500_000
    assert found.messages_max == 625_000


def test_the_least_number_of_messages_counts_where_it_is_more() -> None:
    assert sizing(options(min_bytes_per_file=1), cores=4, bytes_per_row=80).messages_min == 5_000


def test_a_ceiling_is_never_passed_not_even_by_what_is_waited_for() -> None:
    found = sizing(options(max_offsets_per_trigger=6_000), cores=4, bytes_per_row=80)

    assert (found.messages_min, found.messages_max) == (6_000, 6_000)


def test_on_a_backlog_batches_are_never_tiny() -> None:
    assert (
        sizing(options(min_bytes_per_file=1, max_messages_per_batch=1), cores=1, bytes_per_row=80).messages_max
        >= 50_000
    )


def test_spark_looks_several_times_within_the_allowed_latency() -> None:
    assert sizing(options(allowed_latency="2s"), cores=1, bytes_per_row=None).look_every_ms == 250
    assert sizing(options(allowed_latency="300s"), cores=1, bytes_per_row=None).look_every_ms == 1_000
    assert sizing(options(allowed_latency="100ms"), cores=1, bytes_per_row=None).look_every_ms == 100


def test_a_stream_is_begun_again_only_for_batches_of_quite_another_size() -> None:
    small, double, more = (sizing(options(), cores=2, bytes_per_row=size) for size in (50, 65, 80))

    assert not has_outgrown(small, double)
    assert has_outgrown(small, more)
    assert has_outgrown(more, small)
