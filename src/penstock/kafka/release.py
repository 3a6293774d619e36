"""Which release of Kafka a broker is. The client does not tell, so one plain ApiVersions request asks."""

from __future__ import annotations

import socket
import struct

from penstock.settings import KafkaSettings

_API_VERSIONS = 18
_SUPPORTED_FEATURES_TAG = 0

# The newest metadata.version that each release line supports.
_RELEASE_LINES = (
    (7, "3.3"),
    (8, "3.4"),
    (11, "3.5"),
    (14, "3.6"),
    (19, "3.7"),
    (20, "3.8"),
    (21, "3.9"),
    (25, "4.0"),
    (27, "4.1"),
    (29, "4.2"),
    (30, "4.3"),
)


def broker_release(settings: KafkaSettings, *, timeout_s: float) -> str | None:
    """The release line ("4.1") of the first broker that answers; None when it cannot tell, as behind TLS or SASL."""
    if settings.client.get("security.protocol", "plaintext").lower() != "plaintext":
        return None
    for address in settings.bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
                return release_line(_metadata_version(_asked(connection)))
        except (OSError, ValueError, struct.error, IndexError):
            continue
    return None


def release_line(metadata_version: int | None) -> str | None:
    if metadata_version is None:
        return None
    return next((line for newest, line in _RELEASE_LINES if metadata_version <= newest), None)


def _asked(connection: socket.socket) -> bytes:
    client = b"penstock"
    software = bytes([len(client) + 1]) + client + b"\x020\x00"
    header = struct.pack(">hhih", _API_VERSIONS, 3, 1, len(client)) + client + b"\x00"
    request = header + software
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as stream:
        return stream.read(struct.unpack(">i", stream.read(4))[0])


def _metadata_version(response: bytes) -> int | None:
    """Walk an ApiVersions v3 response to the supported features."""
    at = 4 + 2
    count, at = _uvarint(response, at)
    for _ in range(count - 1):
        at = _past_tags(response, at + 6)
    at += 4
    tags, at = _uvarint(response, at)
    for _ in range(tags):
        tag, at = _uvarint(response, at)
        size, at = _uvarint(response, at)
        if tag == _SUPPORTED_FEATURES_TAG:
            return _feature(response, at, b"metadata.version")
        at += size
    return None


def _feature(response: bytes, at: int, wanted: bytes) -> int | None:
    count, at = _uvarint(response, at)
    for _ in range(count - 1):
        size, at = _uvarint(response, at)
        name, at = response[at : at + size - 1], at + size - 1
        newest = struct.unpack_from(">h", response, at + 2)[0]
        if name == wanted:
            return int(newest)
        at = _past_tags(response, at + 4)
    return None


def _past_tags(response: bytes, at: int) -> int:
    tags, at = _uvarint(response, at)
    for _ in range(tags):
        _, at = _uvarint(response, at)
        size, at = _uvarint(response, at)
        at += size
    return at


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
