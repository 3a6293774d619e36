"""The release of a broker, from the bytes of its ApiVersions answer."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from penstock.kafka.release import broker_release, release_line
from penstock.settings import KafkaSettings


@pytest.mark.parametrize(
    ("metadata_version", "line"),
    [
        (7, "3.3"),
        (12, "3.6"),
        (14, "3.6"),
        (21, "3.9"),
        (22, "4.0"),
        (27, "4.1"),
        (30, "4.3"),
        (99, None),
        (None, None),
    ],
)
def test_a_feature_level_belongs_to_a_release_line(metadata_version: int | None, line: str | None) -> None:
    assert release_line(metadata_version) == line


def answer(features: dict[bytes, int]) -> bytes:
    """An ApiVersions v3 response with two apis, these supported features and a later tag."""
    apis = b"\x03" + struct.pack(">hhh", 0, 3, 12) + b"\x00" + struct.pack(">hhh", 3, 0, 13) + b"\x00"
    listed = b"".join(
        bytes([len(name) + 1]) + name + struct.pack(">hh", 1, newest) + b"\x00" for name, newest in features.items()
    )
    supported = bytes([len(features) + 1]) + listed
    tags = b"\x02" + b"\x00" + bytes([len(supported)]) + supported + b"\x01\x08" + bytes(8)
    return struct.pack(">ih", 1, 0) + apis + struct.pack(">i", 0) + tags


def asked_of_a_broker_that_says(response: bytes) -> str | None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                stream.read(struct.unpack(">i", stream.read(4))[0])
                connection.sendall(struct.pack(">i", len(response)) + response)

        thread = threading.Thread(target=serve)
        thread.start()
        settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{listener.getsockname()[1]}")
        found = broker_release(settings, timeout_s=60)
        thread.join(60)
        return found


def test_the_release_is_read_from_the_supported_features() -> None:
    assert asked_of_a_broker_that_says(answer({b"group.version": 1, b"metadata.version": 30})) == "4.3"


@pytest.mark.parametrize("response", [b"", b"\x00" * 3, answer({b"group.version": 1}), answer({})[:-20], b"\xff" * 40])
def test_an_answer_that_makes_no_sense_gives_no_release(response: bytes) -> None:
    assert asked_of_a_broker_that_says(response) is None


def test_nobody_is_asked_behind_tls_or_at_no_address() -> None:
    secured = KafkaSettings(bootstrap_servers="127.0.0.1:1", client={"security.protocol": "SASL_SSL"})

    assert broker_release(secured, timeout_s=1) is None
    assert broker_release(KafkaSettings(bootstrap_servers="127.0.0.1:1"), timeout_s=1) is None
    assert broker_release(KafkaSettings(bootstrap_servers="nonsense"), timeout_s=1) is None
