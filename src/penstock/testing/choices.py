"""What may go wrong in a simulated cluster, and who decides whether it does.

Everything that happens in a run is a *choice* between courses. Choice 0 is always the undisturbed one; anything else
is a *deviation*.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which deviations a scenario allows. Spans of time in milliseconds; 0 switches that kind off."""

    crashes: bool = True
    restart_ms: int = 300
    """How long the dead stay dead; 0 is for ever."""
    pause_ms: int = 0
    delay_ms: int = 0
    duplicates: bool = False
    lost_acks: bool = False
    drops: bool = False
    slow_reads: bool = False
    deaf_ms: int = 0
    """How long a reader may see nothing new of a topic, while all that it writes arrives."""
    outage_ms: int = 0
    """How long the leader of the ledgers may be away: nothing is read, every append is given up."""
    compaction: bool = False
    """Snapshot topics are compacted now and then."""
    clock_step_ms: int = 0
    clock_steps_back: bool = True
    fences: bool = False
    transaction_timeout_ms: int = 10_000
    until_ms: int = 2_000
    """Faults stop after this much virtual time, so that the end of a run shows whether it recovers."""


class Choices(Protocol):
    def pick(self, label: str, count: int) -> int:
        """A number below `count`; 0 is the undisturbed course."""


class Drawn:
    """Choices from a seed: a deviation now and then."""

    def __init__(self, seed: int, *, rate: float) -> None:
        self._random, self._rate = random.Random(seed), rate

    def pick(self, label: str, count: int) -> int:
        if label in ("order", "shape"):
            return self._random.randrange(count)
        return self._random.randrange(1, count) if self._random.random() < self._rate else 0


class Scripted:
    """The undisturbed course, but for the given deviations (number of the choice → what is chosen)."""

    def __init__(self, deviations: Mapping[int, int]) -> None:
        self._deviations = deviations
        self.counts: list[int] = []
        self.labels: list[str] = []

    def pick(self, label: str, count: int) -> int:
        number = len(self.counts)
        self.counts.append(count)
        self.labels.append(label)
        return min(self._deviations.get(number, 0), count - 1)
