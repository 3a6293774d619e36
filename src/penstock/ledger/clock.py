"""Two views of time, both pure: the log's own clock is in the fold (`machine.py`); this is a reader's watch on it.

The log clock of a partition is the running maximum of its append times. It is the only clock that decides anything.
But it is some broker's clock: when it runs ahead of our own elapsed time, leases look expired that are not.
"""

from __future__ import annotations


class JumpWatch:
    """Compares how far the log clock moved with how much time really passed here (a monotonic clock)."""

    def __init__(self, *, tolerance_ms: int) -> None:
        self._tolerance_ms = tolerance_ms
        self._anchor: tuple[int, int] | None = None

    def forget(self) -> None:
        """Start over: while history is replayed, the log clock says nothing about the present."""
        self._anchor = None

    def observe(self, *, log_clock_ms: int, monotonic_ms: int) -> int:
        """By how many milliseconds the log clock jumped ahead since the last anchor; 0 if within tolerance."""
        if self._anchor is None:
            self._anchor = (log_clock_ms, monotonic_ms)
            return 0
        log_then, here_then = self._anchor
        ahead_ms = (log_clock_ms - log_then) - (monotonic_ms - here_then)
        if ahead_ms <= self._tolerance_ms:
            return 0
        self._anchor = (log_clock_ms, monotonic_ms)
        return ahead_ms


class LocalLease:
    """What a holder may believe without asking, on its own monotonic clock.

    It counts from *before* the last renewal was sent that was read back: the log renewed it no earlier than that.
    """

    def __init__(self, *, lasts_ms: int) -> None:
        self._lasts_ms = lasts_ms
        self._since_ms: int | None = None

    def renewed(self, *, sent_ms: int) -> None:
        self._since_ms = sent_ms if self._since_ms is None else max(self._since_ms, sent_ms)

    def is_good(self, monotonic_ms: int) -> bool:
        return self._since_ms is not None and monotonic_ms - self._since_ms < self._lasts_ms

    def is_due(self, monotonic_ms: int, *, every_ms: int) -> bool:
        """Whether it is time to renew."""
        return self._since_ms is not None and monotonic_ms - self._since_ms >= every_ms
