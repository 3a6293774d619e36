"""Is that broker ready? One hand-made Metadata request, so that asking needs no Kafka client."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from penstock.broker.recipe import HOST

_METADATA = 3
_VERSION = 2
_CORRELATION = 7
_RESPONSE_MAX = 1_000_000


class Membership(NamedTuple):
    """What a broker says of its cluster: only nodes that are open for work are listed."""

    cluster_id: str | None
    nodes: frozenset[int]


NOBODY = Membership(None, frozenset())


def membership(port: int, *, timeout_s: float = 2.0) -> Membership:
    """Ask whoever listens there; nobody, if nobody answers as a broker does."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(metadata_request())
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            if not 0 < size <= _RESPONSE_MAX:
                return NOBODY
            return membership_of(_exactly(connection, size))
    except (OSError, struct.error):
        return NOBODY


def metadata_request() -> bytes:
    """Asks for the brokers and for no topic."""
    request = struct.pack(">hhihi", _METADATA, _VERSION, _CORRELATION, -1, 0)
    return struct.pack(">i", len(request)) + request


def membership_of(response: bytes) -> Membership:
    """Raises struct.error on bytes that are no such response."""
    correlation, count = struct.unpack_from(">ii", response)
    if correlation != _CORRELATION:
        raise struct.error("the answer to another question")
    nodes, at = [], 8
    for _ in range(count):
        (node,) = struct.unpack_from(">i", response, at)
        _, at = _string(response, at + 4)  # host
        _, at = _string(response, at + 4)  # port, then rack
        nodes.append(node)
    cluster_id, _ = _string(response, at)
    return Membership(cluster_id.decode("ascii", "replace") if cluster_id else None, frozenset(nodes))


def _string(response: bytes, at: int) -> tuple[bytes | None, int]:
    """The string that begins there, and where it ends; a negative length means none."""
    (length,) = struct.unpack_from(">h", response, at)
    begin, end = at + 2, at + 2 + max(0, length)
    return (response[begin:end] if length >= 0 else None), end


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("closed in the middle of an answer")
        received += chunk
    return bytes(received)
