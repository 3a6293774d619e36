"""Which partition a message goes to: with a key the one that Java's own producer would choose, without one in turn."""

from __future__ import annotations

import os
import threading
from functools import lru_cache

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The 32-bit hash of Java's `Utils.murmur2`, as an unsigned number."""
    length = len(key)
    whole = length & ~3
    h = _SEED ^ length
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * _FACTOR & _MASK
        k = (k ^ k >> 24) * _FACTOR & _MASK
        h = (h * _FACTOR & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _MASK
    h = (h ^ h >> 13) * _FACTOR & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Where all messages with this key go, as long as the topic has that many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Turns:
    """Partitions in turn for messages without a key: after any n messages none has two more than another.

    Each instance begins somewhere else, so that many that send little do not all begin at 0.
    """

    def __init__(self, first: int | None = None) -> None:
        self._lock = threading.Lock()
        self._next = int.from_bytes(os.urandom(4), "big") if first is None else first

    def take(self, count: int, partitions: int) -> int:
        """The partition of the first of `count` messages; the others follow it round."""
        with self._lock:
            first = self._next
            self._next = first + count
        return first % partitions
