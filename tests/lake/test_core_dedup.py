"""Messages that come twice, and tables that grow, on a real broker and a real Spark."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from lake_ground import Ground
from lake_table import log_of, rows_of, stored_in
from real_kafka import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.broker import Embedded

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(spark, settings_for(penstock_broker.bootstrap), tmp_path)
    yield made
    made.close()


def send_at(ground: Ground, partition: int, at_ms: int, *ids: int | None) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": ground.kafka.bootstrap_servers})
    for each in ids:
        producer.produce(ground.topic, json.dumps({"id": each}), partition=partition, timestamp=at_ms)
    assert producer.flush(30) == 0


def ids_in(ground: Ground) -> list[int | None]:
    return sorted((row["id"] for row in rows_of(ground.table)), key=lambda each: (each is None, each))


def test_an_id_lands_once_within_the_window_over_restarts_and_without_a_checkpoint(ground: Ground) -> None:
    now = int(time.time() * 1_000)
    options = {"dedup": ["id"], "dedup_within": "1h", "columns": "id BIGINT"}
    send_at(ground, 0, now - 2 * HOUR_MS, 1)
    send_at(ground, 0, now, 1, 2, 2, None, None)
    ground.send_raw(1, b"junk", b"junk")
    ground.land(dead_letters=str(ground.dead), **options)
    # Within one batch the same id counts once; what has none, or cannot be read, is like no other.
    assert ids_in(ground) == [1, 2, None, None]
    assert [bytes(row["value"]) for row in rows_of(ground.dead)] == [b"junk", b"junk"]

    send_at(ground, 1, now + 1, 2, 3)
    ground.land(dead_letters=str(ground.dead), **options)
    assert ids_in(ground) == [1, 2, 3, None, None]

    # Too old to be judged (Spark asks for the time of the batch before the last): not lost.
    send_at(ground, 0, now - 3 * HOUR_MS, 2, 9)
    send_at(ground, 1, now + 2, 3, 4)
    ground.land(dead_letters=str(ground.dead), **options)
    assert ids_in(ground) == [1, 2, 2, 3, 4, 9, None, None]

    # One window is read again, and only teaches.
    shutil.rmtree(ground.checkpoint)
    send_at(ground, 1, now + 3, 4, 10)
    ground.land(dead_letters=str(ground.dead), **options)
    assert ids_in(ground) == [1, 2, 2, 3, 4, 9, 10, None, None]
    assert len(rows_of(ground.dead)) == 2
    assert stored_in(ground.table) == {f"{ground.app_id}-0": 7, f"{ground.app_id}-1": 7}


def test_a_new_field_becomes_a_column_in_the_commit_that_first_has_it(ground: Ground) -> None:
    options = {"schema": "evolve", "columns": "id BIGINT"}
    ground.send_raw(0, b'{"id": 1}')
    ground.land(**options)
    ground.send_raw(0, b'{"id": 2}', b'{"id": 3, "name": "Ada"}')
    ground.land(**options)
    ground.send_raw(0, b'{"id": 4, "name": "Grace"}')
    ground.land(**options)

    assert sorted(
        (row["id"], row["name"]) for row in rows_of(ground.table, "SELECT id, coalesce(name, '') AS name FROM t")
    ) == [
        (1, ""),
        (2, ""),
        (3, "Ada"),
        (4, "Grace"),
    ]
    kinds = [sorted({next(iter(action)) for action in actions}) for actions in log_of(ground.table).values()]
    assert kinds[1:] == [
        ["add", "commitInfo", "txn"],
        ["add", "commitInfo", "metaData", "txn"],
        ["add", "commitInfo", "txn"],
    ]
