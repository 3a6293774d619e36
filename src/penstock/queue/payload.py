"""Payloads: what a value becomes on the wire, and what a reader with a type makes of it again.

bytes          as they are
str            UTF-8
None           Kafka's own null value
anything else  JSON, with the header `content-type: application/json`
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from penstock.errors import Undecodable, UsageError

JSON = "application/json"

Decoder = Callable[[bytes | None, str | None], Any]
"""From the value and its content type. Raises Undecodable."""


class Payload(NamedTuple):
    value: bytes | None
    content_type: str | None = None


def encoded(given: object) -> Payload:
    """Raises UsageError for what has no form on the wire."""
    if isinstance(given, bytes):
        return Payload(given)
    if given is None:
        return Payload(None)
    if isinstance(given, bytearray | memoryview):
        return Payload(bytes(given))
    try:
        if isinstance(given, str):
            return Payload(given.encode())
        return Payload(_ENCODER.encode(given), JSON)
    except (TypeError, ValueError, OverflowError, RecursionError) as failure:
        raise UsageError(
            f"a {type(given).__name__} cannot be sent as {'UTF-8' if isinstance(given, str) else 'JSON'}: {failure}",
            next_step="send bytes, text, or what JSON can say (dict, list, dataclass, msgspec.Struct, pydantic model)",
        ) from failure


def decoder(kind: Any = Any) -> Decoder:
    """How a reader that wants this type reads: a type of the standard library, msgspec or pydantic; Any goes by the
    content type (JSON is parsed, all else stays bytes).

    Raises UsageError for a type that no payload can become.
    """
    if plain := _PLAIN.get(kind):
        return plain
    wanted = [each for each in get_args(kind) if each is not type(None)]
    if get_origin(kind) in (Union, UnionType) and len(wanted) == 1 and (plain := _PLAIN.get(wanted[0])):
        return _or_none(plain)
    return _of_json(kind)


def _or_none(read: Decoder) -> Decoder:
    return lambda value, content_type: None if value is None else read(value, content_type)


def _of_json(kind: Any) -> Decoder:
    if validate := getattr(kind, "model_validate_json", None):
        return lambda value, _: _read(validate, b"null" if value is None else value, kind)
    try:
        decode = msgspec.json.Decoder(kind, dec_hook=_dec_hook).decode
    except TypeError as failure:
        raise UsageError(
            f"a payload cannot be read as {_named(kind)}: {failure}",
            next_step="use bytes, str, a dataclass, TypedDict, msgspec.Struct or pydantic model",
        ) from failure
    return lambda value, _: _read(decode, b"null" if value is None else value, kind)


def _by_content_type(value: bytes | None, content_type: str | None) -> Any:
    if value is None or not _is_json(content_type):
        return value
    return _read(msgspec.json.decode, value, "JSON")


def _is_json(content_type: str | None) -> bool:
    essence = (content_type or "").partition(";")[0].strip().lower()
    return essence == JSON or essence.endswith("+json")


def _as_bytes(value: bytes | None, _: str | None) -> bytes:
    if value is None:
        raise Undecodable("a payload that is null is no bytes", next_step="read it as `bytes | None`, or as Any")
    return value


def _as_text(value: bytes | None, _: str | None) -> str:
    if value is None:
        raise Undecodable("a payload that is null is no text", next_step="read it as `str | None`, or as Any")
    return str(_read(bytes.decode, value, str))


def _read(read: Callable[[bytes], Any], value: bytes, kind: object) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, RecursionError) as failure:
        # msgspec's and pydantic's errors are ValueErrors.
        raise Undecodable(
            f"a payload of {len(value)} bytes is no {_named(kind)}: {failure}",
            next_step="correct the sender, or the type that the handler asks for",
        ) from failure


def _named(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _enc_hook(given: Any) -> Any:
    """Pydantic's models, wherever they stand."""
    if dump := getattr(given, "model_dump", None):
        return dump(mode="json")
    raise TypeError(f"{type(given).__name__} has no form in JSON")


def _dec_hook(kind: type, given: Any) -> Any:
    if validate := getattr(kind, "model_validate", None):
        return validate(given)
    raise TypeError(f"{kind.__name__} has no form in JSON")


_PLAIN: dict[Any, Decoder] = {Any: _by_content_type, object: _by_content_type, bytes: _as_bytes, str: _as_text}
_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook)
