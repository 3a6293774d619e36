"""Small frozen values that every part of Penstock speaks in."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from penstock.errors import UsageError


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Bounds(NamedTuple):
    """How far one partition of a log reaches."""

    start: int
    """The first offset that is still there."""
    stable_end: int
    """Readers of committed records get no further than this: behind it a transaction is open."""
    end: int


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


class Duration(int):
    """A span of time in whole milliseconds; prints as people write it."""

    @property
    def seconds(self) -> float:
        return self / 1_000

    def __str__(self) -> str:
        for unit in ("w", "d", "h", "m", "s"):
            if self and self % _UNITS_MS[unit] == 0:
                return f"{self // _UNITS_MS[unit]}{unit}"
        return f"{int(self)}ms"

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"


DurationLike = str | int | float | timedelta


def duration(given: DurationLike) -> Duration:
    """Read "30s", "1h30m", a number of seconds or a timedelta.

    Raises UsageError on anything else, and on negative spans.
    """
    if isinstance(given, Duration):
        return given
    if isinstance(given, timedelta):
        milliseconds = round(given.total_seconds() * 1_000)
    elif isinstance(given, str):
        milliseconds = _parse(given)
    elif isinstance(given, bool) or given != given or given in (float("inf"), float("-inf")):
        raise _not_a_duration(given)
    else:
        milliseconds = round(given * 1_000)
    if milliseconds < 0:
        raise _not_a_duration(given)
    return Duration(milliseconds)


def _parse(text: str) -> int:
    total, end = 0.0, 0
    compact = text.replace(" ", "")
    for part in _DURATION.finditer(compact):
        if part.start() != end:
            raise _not_a_duration(text)
        total += float(part[1]) * _UNITS_MS[part[2]]
        end = part.end()
    if not compact or end != len(compact):
        raise _not_a_duration(text)
    return round(total)


def _not_a_duration(given: object) -> UsageError:
    return UsageError(
        f"{given!r} is not a duration", next_step='write "250ms", "30s", "10m", "1h30m", "7d" or a number of seconds'
    )


_NAME = re.compile(r"[a-zA-Z0-9._-]{1,120}")


def checked_name(kind: str, name: str) -> str:
    """The rule for names of queues, groups and ledgers, which become parts of topic names."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(
            f"{kind} name {name!r} is not allowed",
            next_step="use 1 to 120 of the characters a-z A-Z 0-9 . _ - (not just dots)",
        )
    return name
