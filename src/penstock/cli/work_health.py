"""How a process of `penstock work` fares: what its `/healthz` and `/readyz` say, beside its `/metrics`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.observe.events import Event, QueueCounted, subscribed
from penstock.observe.health import Health
from penstock.observe.serving import measured

if TYPE_CHECKING:
    from penstock.queue.running import Station

SILENCE_MAX_S = 60.0
"""Queues are counted every few seconds, which needs their workers and the broker."""
STILL_MAX_S = 180.0
"""Each question to a broker that is away ends sooner, and so does reading a long ledger anew."""


@contextmanager
def watched(port: int | None, *, stopping: threading.Event) -> Iterator[Watch]:
    """Served there while the block lasts, if there is a port. Raises Unavailable if it is not to be had."""
    health = Health()
    watch = Watch(stopping=stopping)
    health.add("queues", watch.what_failed, liveness=True)
    health.add("taking messages", watch.what_hinders)
    with measured(health, port), subscribed(watch, hears=watch.hears):
        yield watch


class Watch:
    """Looks at the queues of this process, and listens to what is told of them."""

    def __init__(self, *, stopping: threading.Event, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._stopping, self._monotonic_s = stopping, monotonic_s
        self._stations: Sequence[Station] | None = None
        self._counted_s = 0.0

    def look_at(self, stations: Sequence[Station]) -> None:
        """These are at work from now on."""
        self._counted_s = self._monotonic_s()
        self._stations = stations

    def hears(self, kind: type[Event]) -> bool:
        return kind is QueueCounted

    def __call__(self, event: Event) -> None:
        if self.hears(type(event)):
            self._counted_s = self._monotonic_s()

    def what_failed(self) -> str | None:
        """Of what only a new process would mend."""
        for station in self._stations or ():
            if station.failure is not None:
                return f"queue {station.queue} has stopped with {type(station.failure).__name__}: the log says why"
            if not station.is_running and not self._stopping.is_set():
                return f"the worker of queue {station.queue} has ended"
            still_s = 0.0 if station.stepped_s is None else self._monotonic_s() - station.stepped_s
            if still_s > STILL_MAX_S:
                return f"the worker of queue {station.queue} stands still since {still_s:.0f} s"
        return None

    def what_hinders(self) -> str | None:
        """Why messages are not taken now."""
        if self._stopping.is_set():
            return "it is stopping"
        if self._stations is None:
            return "the application is being loaded"
        if idle := sum(not (station.is_ready.is_set() and station.partitions) for station in self._stations):
            return f"{idle} of {len(self._stations)} queues have no partitions to take from"
        silent_s = self._monotonic_s() - self._counted_s
        if silent_s > SILENCE_MAX_S:
            return f"nothing was counted for {silent_s:.0f} s: the broker is out of reach, or a worker stands still"
        return None
