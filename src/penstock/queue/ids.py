"""Ids of messages: made at send, or, for messages that came without one, the place where they lie."""

from __future__ import annotations

import itertools
import os
import time

from penstock.errors import UsageError

ID_MAX_BYTES = 200

_COUNTER_BITS = 32
_PROCESS_BITS = 42


class _Maker:
    """Makes UUIDs of version 7: 48 bits of time in ms, 32 of a counter, 42 that are this process's own."""

    def __init__(self) -> None:
        # From the system's chance, so that neither a seed nor a fork makes two processes alike.
        self._process = int.from_bytes(os.urandom(8), "big") % (1 << _PROCESS_BITS)
        self._counter = itertools.count()

    def make(self, now_ms: int) -> str:
        count = next(self._counter) % (1 << _COUNTER_BITS)
        # The counter fills the 12 bits behind the version, then 20 of the 62 behind the variant.
        tail = (count << _PROCESS_BITS | self._process) & ((1 << 62) - 1) | 1 << 63
        digits = f"{now_ms & ((1 << 48) - 1):012x}7{count >> 20:03x}{tail:016x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_maker = _Maker()


def _after_fork() -> None:
    global _maker
    _maker = _Maker()


os.register_at_fork(after_in_child=_after_fork)


def new_id(now_ms: int | None = None) -> str:
    """A new one: no two are ever alike, and those of one process sort in the order in which they were made."""
    return _maker.make(time.time_ns() // 1_000_000 if now_ms is None else now_ms)


def place_id(topic: str, partition: int, offset: int) -> str:
    """The id of a message that came without one. Topics have no slash in their name, so it names one place only."""
    return f"{topic}/{partition}/{offset}"


def checked_id(given: object) -> str:
    """The rule for ids that users give."""
    if not isinstance(given, str) or not given or not given.isprintable() or len(given.encode()) > ID_MAX_BYTES:
        raise UsageError(
            f"message id {given!r:.80} is not allowed",
            next_step=f"use a text of 1 to {ID_MAX_BYTES} bytes of UTF-8, all of it printable",
        )
    return given
