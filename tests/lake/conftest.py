"""One Spark session for all tests of a run."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.lake.session import spark_session
from penstock.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's client leaves its sockets to the garbage collector."""
    untidy = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(untidy)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session(LakeSettings(master="local[2]", driver_memory="1g"))
    gateway = session.sparkContext._gateway
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
        gateway.shutdown()
        del session, gateway
        gc.collect()
