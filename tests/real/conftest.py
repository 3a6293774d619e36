"""Fixtures for tests against real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_postgres import NoServer, Postgres, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One real PostgreSQL, started when first asked for; tests that want it are skipped where there is none."""
    try:
        opened = postgres_server()
        server = opened.__enter__()
    except NoServer as reason:
        pytest.skip(str(reason))
    try:
        yield server
    finally:
        opened.__exit__(None, None, None)
