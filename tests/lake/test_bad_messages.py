"""Bad messages of every kind end in the dead letters, with their bytes, and the stream goes on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_faults import books, clear
from lake_ground import Ground
from lake_table import rows_of
from real_kafka import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.broker import Embedded

pytestmark = pytest.mark.spark

# As much as the broker and the client take by default, room for the rest of the record left.
LARGE = 990_000


@pytest.fixture
def ground(spark: SparkSession, penstock_broker: Embedded, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(spark, settings_for(penstock_broker.bootstrap), tmp_path)
    yield made
    clear(made)


def check(ground: Ground, *, good: bytes, bad: Sequence[bytes | None], **options: object) -> list[str]:
    """Land them between good ones, with a bad one at the very end; then once more. Returns the errors, in order."""
    for values in (bad, bad[:2]):
        sent = [good, *(each for one in values for each in (good, one))]
        ground.send_raw(0, *sent)  # type: ignore[arg-type]
        ground.land(dead_letters=str(ground.dead), **options)
    books(ground, is_bad=lambda value: value != good).check()
    dead = sorted(rows_of(ground.dead), key=lambda row: row["offset"])
    assert [None if row["value"] is None else bytes(row["value"]) for row in dead] == [*bad, *bad[:2]]
    assert all(row["error"] for row in dead)
    assert {row["topic"] for row in dead} == {ground.topic}
    return [row["error"] for row in dead]


def test_what_is_no_json_of_the_right_types_is_put_aside(ground: Ground) -> None:
    bad = [
        None,
        b"",
        b"junk",
        b'{"id": 1',
        b"[1, 2]",
        b'{"id": "x"}',
        b'{"id": 1.5}',
        b'{"id": {"a": 1}, "name": "n"}',
        b'{"id": 99999999999999999999}',
        b'{"id": 1, "name": "\xff\xfe"}',
        b'{"id": 1} {"id": 2}',
        b"\x00" * LARGE,
        b'{"name": "' + b"x" * LARGE,
        b"[" * 500_000,
    ]
    errors = check(ground, good=b'{"id": 1, "name": "n"}', bad=bad)

    assert errors[0] == "the value is null"
    assert errors[9] == "the value is not UTF-8"
    assert all(len(error) < 1_000 for error in errors), "the error says what is wrong, and does not repeat the message"


def test_truncated_avro_is_put_aside(ground: Ground, tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    good = b"\x02\x06abc"

    check(
        ground,
        good=good,
        bad=[good[:-1], good[:1], b"", None, b"\x02\xfe\xff\xff\xff\x0f", b"\xff" * 20],
        format="avro",
        columns="",
        schema_file=str(tmp_path / "order.avsc"),
    )


def test_a_gzip_bomb_is_put_aside_within_bounds(ground: Ground) -> None:
    message = b'{"id": 1, "name": "n"}'
    good = gzip.compress(message, mtime=0)
    bomb = gzip.compress(b'{"id": 1, "name": "' + b"x" * 200_000_000 + b'"}', 9, mtime=0)
    assert len(bomb) < 1_000_000

    errors = check(
        ground,
        good=good,
        bad=[bomb, good[:-9], b"\x1f\x8b", message, None, gzip.compress(b"junk", mtime=0)],
        payload="gzip",
        payload_bytes_max=1_000_000,
    )

    assert "1000000" in errors[0].replace(",", "")
