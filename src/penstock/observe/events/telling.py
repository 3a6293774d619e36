"""What an event is, and the one place where events are told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `level` is its weight in a log: debug, info, warning or error."""

    level: ClassVar[str] = "info"


Listener = Callable[[Event], None]

log = logging.getLogger("penstock.observe")

# Replaced, never changed: who is just telling goes through all that were there.
_listeners: tuple[Listener, ...] = ()
_changing = threading.Lock()


def tell(event: Event) -> None:
    """Give the event to every listener, in the order in which they subscribed. What one of them raises is logged."""
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            # Who tells has work to do, and the others want to hear it, too.
            log.exception("a listener failed at %s", type(event).__name__)


def are_heard() -> bool:
    """Whether anybody listens: what costs much to tell need not be told to nobody."""
    return bool(_listeners)


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    global _listeners
    with _changing:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _changing:
            left = list(_listeners)
            left.remove(listener)
            _listeners = tuple(left)
