"""Tables are made by whoever comes first."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from penstock.lake.sink import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_table_that_several_make_at_the_same_moment_is_made(spark: SparkSession, tmp_path: Path) -> None:
    def make(place: Path, together: threading.Barrier) -> None:
        together.wait(60)
        try:
            table = Table(spark, str(place))
            table.make(StructType.fromDDL("id BIGINT"), properties={})
            seen.append(table.exists())
        except Exception as failure:  # noqa: BLE001 - it is told below
            seen.append(failure)

    seen: list[object] = []
    for number in range(8):
        together = threading.Barrier(3)
        makers = [threading.Thread(target=make, args=(tmp_path / str(number), together)) for _ in range(3)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()

    assert seen == [True] * 24
