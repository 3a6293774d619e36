"""Ports on the loopback that nobody uses, and that nobody will stumble upon."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from penstock.broker.recipe import HOST
from penstock.errors import Unavailable

_LOWEST, _HIGHEST = 20_000, 32_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Whether somebody could listen there now."""
    with socket.socket() as candidate:
        # As Kafka does: a port that was just left may be taken again at once.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Different free ports; only a look, so who starts on them must be ready to try others.

    Not from the range that the system gives to outgoing connections: while a node is down, a client that keeps trying
    to reach it could be given that very port as its own, and talk to itself while the node finds its port taken.
    """
    chosen: list[int] = []
    for port in random.sample(range(_LOWEST, _end()), k=min(2_000, _end() - _LOWEST)):
        if is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise Unavailable(f"no {count} free ports from {_LOWEST} to {_end()} on {HOST}", next_step="give a port yourself")


def _end() -> int:
    try:
        first_ephemeral = int(_EPHEMERAL.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST
    # A system that gives out nearly all ports leaves no better choice.
    return _HIGHEST if first_ephemeral < _LOWEST + 1_000 else min(_HIGHEST, first_ephemeral)
