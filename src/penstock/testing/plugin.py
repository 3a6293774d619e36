"""The pytest plugin: a real Kafka for tests, as the fixture `penstock_broker`.

def test_orders_arrive(penstock_broker):
    producer = confluent_kafka.Producer({"bootstrap.servers": penstock_broker.bootstrap})
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.broker import Embedded


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Embedded]:
    """One real broker with temporary data, started when first asked for and shared by the whole session."""
    # Not at the top: every pytest run of every project that has Penstock installed imports this file.
    from penstock.broker import Embedded

    with Embedded() as kafka:
        yield kafka
