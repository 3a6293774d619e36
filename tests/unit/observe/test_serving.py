from __future__ import annotations

import logging
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from penstock.errors import Unavailable
from penstock.observe.events import Event, MessagesAcked, are_heard, tell
from penstock.observe.health import Health
from penstock.observe.serving import check_port, measured


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_what_happens_in_the_block_is_counted_and_served_where_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"), measured(Health(), 0):
        tell(MessagesAcked(queue="orders", count=7))
        [address] = re.findall(r"http://127\.0\.0\.1:\d+/metrics", caplog.text)
        with urllib.request.urlopen(address, timeout=60) as answer:
            text = answer.read().decode()

    assert 'penstock_messages_acked_total{queue="orders"} 7.0' in text
    assert not are_heard(Event)


def test_a_port_that_was_asked_for_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free: int = server.getsockname()[1]
    with caplog.at_level(logging.WARNING, "penstock"), measured(Health(), free):
        pass

    assert caplog.text == ""


def test_without_a_port_nobody_listens_and_nothing_is_counted() -> None:
    before = set(threading.enumerate())
    with measured(Health(), None):
        assert set(threading.enumerate()) == before
        assert not are_heard(Event)


def test_a_port_that_is_taken_is_refused_before_the_block_with_a_next_step(port: int) -> None:
    said = f"port {port} is not to be had: Address already in use; choose another --metrics-port"
    with pytest.raises(Unavailable, match=said):
        check_port(port)
    with pytest.raises(Unavailable, match=said), measured(Health(), port):
        pytest.fail("it began")
    assert not are_heard(Event)


def test_a_port_that_was_looked_at_is_free_for_who_needs_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free: int = server.getsockname()[1]
    check_port(free)

    with measured(Health(), free), pytest.raises(Unavailable):
        check_port(free)
