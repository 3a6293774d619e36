"""The registry's client against a real HTTP server on loopback; no Spark."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import pytest
from registry_server import RegistryServer

from penstock.errors import AccessDenied, NotFound, PenstockError, TransientError
from penstock.lake.registry import ANSWER_BYTES_MAX, Registry
from penstock.values import duration


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


def client(server: RegistryServer, **given: str) -> Registry:
    return Registry(server.address, timeout=duration("5s"), **given)


def test_a_schema_is_asked_for_once(server: RegistryServer) -> None:
    server.register(7, {"type": "string"})
    registry = client(server, user="ada", password="p:w")

    assert registry.by_id(7) == registry.by_id(7)
    assert registry.by_id(7).text == '{"type": "string"}'
    assert registry.by_id(8) is None
    assert registry.by_id(8) is None
    login = "Basic " + base64.b64encode(b"ada:p:w").decode()
    assert server.asked == [("/schemas/ids/7", login), ("/schemas/ids/8", login)]


def test_the_newest_schema_of_a_subject_with_what_it_refers_to_the_innermost_first(server: RegistryServer) -> None:
    server.register(1, "inner", subject="inner")
    server.register(2, "middle", subject="mid%2Fdle", references=[{"name": "i", "subject": "inner", "version": 1}])
    server.register(
        3,
        "outer",
        subject="orders-value",
        schemaType="AVRO",
        references=[
            {"name": "m", "subject": "mid/dle", "version": 1},
            {"name": "i", "subject": "inner", "version": 1},
        ],
    )

    found = client(server).latest("orders-value")

    assert found.text == '"outer"'
    assert found.references == ('"inner"', '"middle"')
    with pytest.raises(NotFound, match="no subject other-value"):
        client(server).latest("other-value")


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (401, b"", AccessDenied, "answered 401"),
        (403, b"", AccessDenied, "answered 403"),
        (500, b"", TransientError, "answered 500"),
        (429, b"", TransientError, "answered 429"),
        (302, b"", TransientError, "answered 302"),
        (200, b"<html>", TransientError, "no JSON"),
        (200, b"[]", TransientError, "no object"),
        (200, b"{}", TransientError, "without a schema"),
        (200, b" " * (ANSWER_BYTES_MAX + 1), TransientError, "more than"),
        (200, b'{"schema": "x", "references": [{"subject": "gone", "version": 1}]}', TransientError, "not there"),
    ],
)
def test_whatever_else_the_registry_answers_is_an_error_with_a_next_step(
    server: RegistryServer, status: int, body: bytes, error: type[PenstockError], says: str
) -> None:
    server.answers["/schemas/ids/1"] = (status, body)

    with pytest.raises(error, match=says) as failed:
        client(server, user="ada", password="hunter2").by_id(1)

    assert failed.value.next_step
    assert "hunter2" not in str(failed.value)


def test_a_failure_is_not_remembered(server: RegistryServer) -> None:
    registry = client(server)
    server.answers["/schemas/ids/1"] = (503, b"")
    with pytest.raises(TransientError):
        registry.by_id(1)
    server.register(1, {"type": "string"})

    assert registry.by_id(1) is not None


def test_references_in_a_circle_come_to_an_end(server: RegistryServer) -> None:
    server.register(1, "a", subject="a", references=[{"subject": "b", "version": 1}])
    server.register(2, "b", subject="b", references=[{"subject": "a", "version": 1}])

    assert sorted(client(server).by_id(1).references) == ['"a"', '"b"']


def test_a_registry_that_does_not_answer_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TransientError, match="does not answer"):
            Registry(address, timeout=duration("200ms")).by_id(1)
    with pytest.raises(TransientError, match="does not answer"):
        Registry(address, timeout=duration("200ms")).by_id(1)
