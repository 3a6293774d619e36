"""What a run says of its pipelines, without Spark or a broker."""

from __future__ import annotations

from penstock.cli.lake_progress import Lines
from penstock.errors import BrokerUnavailable, Gap, NotFound, PenstockError
from penstock.lake.lag import PartitionLag, lag_now
from penstock.lake.maintenance import Folder, closed, condition_of
from penstock.lake.offsets import Naming
from penstock.lake.pipeline import Progress
from penstock.lake.rewind import offsets_as_of
from penstock.lake.running import Rate, added, told_together
from penstock.observe.events import LakeProgressed
from penstock.values import Bounds, TopicPartition, duration

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def told(failures: dict[str, PenstockError], pipelines: int) -> tuple[int, str]:
    failure = told_together(failures, pipelines)
    assert failure is not None
    return failure.exit_code, failure.what


def test_the_one_pipeline_that_was_asked_for_fails_as_it_is() -> None:
    gap = Gap(topic="orders", partition=0, first=3, last=4)

    assert told_together({"orders": gap}, 1) is gap
    assert told_together({}, 3) is None


def test_several_failures_are_named_and_agree_on_an_exit_code_or_do_not() -> None:
    one, other = NotFound("no topic a"), NotFound("no topic b")

    assert told({"a": one}, 3) == (3, "1 of 3 pipelines failed: a: no topic a")
    assert told({"a": one, "b": other}, 3) == (3, "2 of 3 pipelines failed: a: no topic a; b: no topic b")
    assert told({"a": one, "b": BrokerUnavailable("away")}, 2)[0] == 1


def test_what_keeps_all_from_running_is_said_once() -> None:
    missing = NotFound("no Spark")

    assert told_together({"a": missing, "b": missing}, 2) is missing


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate(window_s=10)

    assert rate.seen(0, at=0) == 0
    assert rate.seen(100, at=5) == 20
    assert rate.seen(100, at=14) == 0
    assert rate.seen(100, at=30) == 0


def test_progress_goes_on_after_a_lost_lock() -> None:
    before = Progress(batches=2, rows=20, bad=1, version=5, stored={ZERO: 9, ONE: 9})
    now = Progress(batches=1, rows=5, version=7, stored={ZERO: 14})

    both = added(before, now)

    assert (both.batches, both.rows, both.bad, both.version) == (3, 25, 1, 7)
    assert both.stored == {ZERO: 14, ONE: 9}
    assert added(Progress(), now) is now


def test_lag_is_reckoned_with_what_was_landed_since_kafka_was_asked() -> None:
    waiting = PartitionLag(partition=ZERO, stored=9, bounds=Bounds(0, 30, 30), oldest_ms=1_000)
    idle = PartitionLag(partition=ONE, stored=4, bounds=Bounds(0, 5, 5))

    assert lag_now([waiting, idle], {ZERO: 9, ONE: 4}, 5_000) == (20, 4.0)
    assert lag_now([waiting, idle], {ZERO: 24, ONE: 4}, 5_000) == (5, 0.0)
    assert lag_now([waiting, idle], {ZERO: 29, ONE: 4}, 5_000) == (0, 0.0)


def test_a_partition_that_lost_messages_or_was_never_seen_lags_from_its_start() -> None:
    bounds = Bounds(10, 30, 30)

    assert PartitionLag(partition=ZERO, stored=None, bounds=bounds).messages == 20
    assert PartitionLag(partition=ZERO, stored=3, bounds=bounds).messages == 20


def test_only_partitions_that_are_quiet_and_in_small_pieces_are_compacted() -> None:
    quiet = Folder({"day": "1"}, small_files=2, newest_ms=1_000)
    busy = Folder({"day": "2"}, small_files=9, newest_ms=9_000)
    whole = Folder({"day": "0"}, small_files=1, newest_ms=0)

    assert closed([quiet, busy, whole], now_ms=10_000, closed_after=duration("5s")) == [quiet]


def test_a_partition_is_named_in_sql_whatever_its_values() -> None:
    assert condition_of({}) == ""
    assert condition_of({"day": "2026-01-31", "shop": None}) == "`day` = '2026-01-31' AND `shop` IS NULL"
    assert condition_of({"o`k": "it's \\"}) == "`o``k` = 'it\\'s \\\\'"


def test_a_rewound_partition_that_the_version_did_not_know_begins_at_its_start() -> None:
    naming = Naming("app", with_topic=False)

    assert offsets_as_of({"app-0": 7}, naming, [ZERO, ONE], {ZERO: 0, ONE: 100}) == {ZERO: 7, ONE: 99}


def test_lines_come_when_something_moved_and_not_every_second() -> None:
    def now(version: int, state: str = "running") -> list[LakeProgressed]:
        return [
            LakeProgressed(
                pipeline="orders",
                state=state,
                version=version,
                rows=5_000,
                bad=2,
                rows_per_second=12.3,
                lag_messages=1_200,
                lag_seconds=4.56,
            )
        ]

    lines = Lines()

    assert lines.due(now(3), at=0) == [
        "orders: running, version 3, 5,000 rows, 2 bad, 12 rows/s, lag 1,200 messages, 4.6 s"
    ]
    assert lines.due(now(4), at=5) == []
    assert len(lines.due(now(4), at=10)) == 1
    assert lines.due(now(4), at=60) == []
    assert len(lines.due(now(4, "failed"), at=61)) == 1
