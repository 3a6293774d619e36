"""Payloads: every kind of value on the wire and back."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Undecodable, UsageError
from penstock.queue.payload import JSON, Payload, decoder, encoded


class Colour(enum.Enum):
    RED = "red"


REF = uuid.UUID(int=7)


@dataclasses.dataclass
class Order:
    id: int
    price: decimal.Decimal = decimal.Decimal("1.50")
    placed: datetime.datetime = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    ref: uuid.UUID = REF
    colour: Colour = Colour.RED


class Line(msgspec.Struct):
    order: Order
    count: int


class Model:
    """What a pydantic model looks like from outside."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.n == self.n

    def __hash__(self) -> int:
        return self.n

    def model_dump(self, *, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate_json(cls, text: bytes) -> Model:
        n = msgspec.json.decode(text)["n"]
        if not isinstance(n, int):
            raise ValueError("n must be a number")
        return cls(n)


@pytest.mark.parametrize(
    ("given_value", "wire"),
    [
        (b"\x00\xff", Payload(b"\x00\xff")),
        (b"", Payload(b"")),
        (bytearray(b"ab"), Payload(b"ab")),
        (memoryview(b"ab"), Payload(b"ab")),
        ("grüß", Payload("grüß".encode())),
        (None, Payload(None)),
        ({"a": [1, None, True]}, Payload(b'{"a":[1,null,true]}', JSON)),
        (7, Payload(b"7", JSON)),
        (False, Payload(b"false", JSON)),
        ([Model(1)], Payload(b'[{"n":1}]', JSON)),
    ],
)
def test_bytes_go_as_they_are_text_as_utf8_none_as_null_and_all_else_as_json(
    given_value: object, wire: Payload
) -> None:
    assert encoded(given_value) == wire


@pytest.mark.parametrize("value", [object(), {1j}, lambda: 0, "\ud800", {"a": "\ud800"}])
def test_what_has_no_form_is_refused_by_name(value: object) -> None:
    with pytest.raises(UsageError, match=rf"a {type(value).__name__} cannot be sent as"):
        encoded(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(UsageError, match="a list cannot be sent as JSON"):
        encoded(endless)


@pytest.mark.parametrize("value", [Order(1), Line(Order(2), 3), Model(4), {"a": 1}, [1, 2], 3.5])
def test_a_typed_reader_gets_back_what_was_sent(value: Any) -> None:
    wire = encoded(value)

    assert decoder(type(value))(wire.value, wire.content_type) == value


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=10))
def test_a_reader_without_a_type_goes_by_the_content_type(value: Any) -> None:
    wire = encoded([value])

    assert decoder()(wire.value, wire.content_type) == [value]
    assert decoder()(wire.value, None) == wire.value


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_json_is_recognised_in_all_its_spellings(content_type: str) -> None:
    assert decoder(Any)(b"[1]", content_type) == [1]


@pytest.mark.parametrize("kind", [bytes | None, str | None, Any, Order | None])
def test_null_is_none_for_who_expects_it(kind: Any) -> None:
    assert decoder(kind)(None, None) is None


def test_plain_optional_kinds_are_not_taken_for_json() -> None:
    assert decoder(bytes | None)(b"YQ==", None) == b"YQ=="
    assert decoder(str | None)(b"text", None) == "text"
    assert decoder(Order | None)(b"null", JSON) is None


@pytest.mark.parametrize(
    ("kind", "value", "content_type"),
    [
        (bytes, None, None),
        (str, None, None),
        (str, b"\xff", None),
        (Order, None, JSON),
        (Order, b"", JSON),
        (Order, b"{", JSON),
        (Order, b'{"id":"seven"}', JSON),
        (Model, b'{"n":"seven"}', JSON),
        (Any, b"{", JSON),
        (Any, b"[" * 100_000, JSON),
    ],
)
def test_what_is_not_of_the_type_is_undecodable_never_anything_else(
    kind: Any, value: bytes | None, content_type: str | None
) -> None:
    with pytest.raises(Undecodable):
        decoder(kind)(value, content_type)


def test_a_type_that_no_payload_can_become_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="a payload cannot be read as"):
        decoder(dict[complex, list[int] | set[int]])
