"""The offsets of groups are read and set by readers, one per group, which are kept for the next time.

The admin client's own call crashes the process when the group's coordinator has moved (librdkafka issue 5040).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.kafka.reader import Reader
from penstock.settings import KafkaSettings

_IDLE_MAX = 8


class GroupReaders:
    """May be used from several threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._idle: dict[str, Reader] = {}
        """Those that nobody uses; the one that was used last is the last one."""
        self._is_closed = False
        self._lock = threading.Lock()

    @contextmanager
    def of(self, group: str) -> Iterator[Reader]:
        """A reader of that group, for the caller alone."""
        with self._lock:
            reader = self._idle.pop(group, None)
        reader = reader or Reader(self._settings, group=group)
        try:
            yield reader
        finally:
            self._put_back(group, reader)

    def _put_back(self, group: str, reader: Reader) -> None:
        with self._lock:
            # Another thread may have used one of the same group.
            surplus = self._idle.pop(group, None)
            self._idle[group] = reader
            if surplus is None and (self._is_closed or len(self._idle) > _IDLE_MAX):
                surplus = self._idle.pop(next(iter(self._idle)))
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Those in use are closed by their users. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for reader in idle.values():
            reader.close()
