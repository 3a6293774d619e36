"""Metrics and health of a process that runs for long, on the loopback, for whoever gives it a port."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import Unavailable
from penstock.observe.events import subscribed
from penstock.observe.health import LOOPBACK, Health, HealthServer

log = logging.getLogger("penstock.observe")


@contextmanager
def measured(health: Health, port: int | None) -> Iterator[None]:
    """Serve `/metrics`, `/healthz` and `/readyz` while the block lasts; port 0 is any that is free, None is none.

    Raises Unavailable if the port is not to be had.
    """
    if port is None:
        yield
        return
    from penstock.observe.metrics import Metrics

    metrics = Metrics()
    with _needing(port):
        server = HealthServer(health, metrics.exposition, port=port)
    with subscribed(metrics), server:
        # Nobody could guess a port that was chosen for us: that is said unless somebody wants to hear of errors only.
        level = logging.INFO if port else logging.WARNING
        log.log(level, "metrics are served on http://%s:%d/metrics", LOOPBACK, server.port)
        yield


def check_port(port: int) -> None:
    """Raises Unavailable if nothing could be served there now."""
    with _needing(port):
        socket.create_server((LOOPBACK, port)).close()


@contextmanager
def _needing(port: int) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        # Its own text may name the address once more.
        why = os.strerror(failure.errno) if failure.errno else failure
        raise Unavailable(
            f"port {port} is not to be had: {why}", next_step="choose another --metrics-port"
        ) from failure
