"""What an event is, and the one place where events are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `level` is its weight in a log: debug, info, warning or error."""

    level: ClassVar[str] = "info"


Listener = Callable[[Event], None]

_listeners: list[Listener] = []


def tell(event: Event) -> None:
    """Give the event to every listener, in the order in which they subscribed."""
    for listener in _listeners:
        listener(event)


def are_heard() -> bool:
    """Whether anybody listens: what costs much to tell need not be told to nobody."""
    return bool(_listeners)


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
