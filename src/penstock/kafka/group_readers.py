"""The offsets of groups are read and set by readers, one per group, which are kept for the next time.

The admin client's own call crashes the process when the group's coordinator has moved (librdkafka issue 5040).
"""

from __future__ import annotations

import threading

from penstock.kafka.reader import Reader
from penstock.settings import KafkaSettings

_READERS_MAX = 8


class GroupReaders:
    """May be used from several threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._readers: dict[str, Reader] = {}
        self._lock = threading.Lock()

    def of(self, group: str) -> Reader:
        """The reader of that group; the one that was wanted longest ago may be closed for it."""
        with self._lock:
            reader = self._readers.pop(group, None) or Reader(self._settings, group=group)
            self._readers[group] = reader
            if len(self._readers) > _READERS_MAX:
                self._readers.pop(next(iter(self._readers))).close()
            return reader

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            while self._readers:
                self._readers.popitem()[1].close()
