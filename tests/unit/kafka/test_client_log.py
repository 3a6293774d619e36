from __future__ import annotations

import logging

import pytest

from penstock.kafka.properties import CLIENT_LOG


def test_a_broker_that_is_only_starting_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, CLIENT_LOG.name):
        CLIENT_LOG.warning("GETPID: Failed to acquire PID: Broker: Coordinator load in progress: retrying")
        CLIENT_LOG.warning("FAIL: something else, of this test alone")

    assert [record.getMessage() for record in caplog.records] == ["FAIL: something else, of this test alone"]
