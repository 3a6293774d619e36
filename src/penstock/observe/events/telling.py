"""What an event is, and the one place where events are told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `level` is its weight in a log: debug, info, warning or error."""

    level: ClassVar[str] = "info"


Listener = Callable[[Event], None]
Hears = Callable[[type[Event]], bool]
"""Whether a listener wants events of that kind, as things are now."""


def everything(_kind: type[Event]) -> bool:
    return True


class _Subscription(NamedTuple):
    listener: Listener
    hears: Hears


log = logging.getLogger("penstock.observe")

# Replaced, never changed: who is just telling goes through all that were there.
_subscriptions: tuple[_Subscription, ...] = ()
_changing = threading.Lock()


def tell(event: Event) -> None:
    """Give the event to all who want it, in the order in which they subscribed. What one of them raises is logged."""
    for listener, hears in _subscriptions:
        try:
            if hears(type(event)):
                listener(event)
        except Exception:
            # Who tells has work to do, and the others want to hear it, too.
            log.exception("a listener failed at %s", type(event).__name__)


def are_heard(*kinds: type[Event]) -> bool:
    """Whether anybody wants any of these: what costs much to tell need not be told to nobody."""
    return any(hears(kind) for _, hears in _subscriptions for kind in kinds)


@contextmanager
def subscribed(listener: Listener, *, hears: Hears = everything) -> Iterator[None]:
    global _subscriptions
    subscription = _Subscription(listener, hears)
    with _changing:
        _subscriptions = (*_subscriptions, subscription)
    try:
        yield
    finally:
        with _changing:
            left = list(_subscriptions)
            left.remove(subscription)
            _subscriptions = tuple(left)
