"""How many messages of our partitions are in which state, counted every few seconds for metrics.

Two threads share the work: one asks the broker where topics end and how old their messages are, and may wait for it;
the worker's own counts in its ledgers, a little with every step, so that a million gaps hold nobody up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.claims.lag import next_times
from penstock.kafka.topics import Admin
from penstock.observe import events
from penstock.observe.events import tell
from penstock.queue.look import Shown, shown_state
from penstock.queue.ranges import Range
from penstock.queue.state import QueueMachine
from penstock.settings import KafkaSettings
from penstock.values import Bounds, TopicPartition

EVERY_S = 5.0

_RUNS_PER_STEP = 2_000
_WIDTH = 10_000


@dataclass(slots=True)
class Tally:
    """One round, while it is counted."""

    left: dict[int, Range]
    """Of each partition, the offsets that were not looked at yet."""
    counts: dict[Shown, int] = field(default_factory=lambda: dict.fromkeys(Shown, 0))
    firsts: dict[int, int] = field(default_factory=dict)
    """Of each partition, the first offset that is not finished."""
    width: int = _WIDTH

    def go_on(self, partition: int, machine: QueueMachine, now_ms: int) -> int:
        """Count some more of that partition; returns how many runs of offsets there were."""
        start, end = self.left.pop(partition)
        upto = min(end, max(start, machine.position) + self.width)
        start = max(start, machine.position)
        if start >= upto:
            return 0
        runs = machine.cells.runs(start, upto)
        for run in runs:
            state = shown_state(machine, run.value, now_ms)
            self.counts[state] += run.end - run.start
            if state is not Shown.FINISHED:
                self.firsts.setdefault(partition, run.start)
        if upto < end:
            self.left[partition] = upto, end
        # As wide as makes some hundreds of runs.
        self.width = max(1, self.width // 2 if len(runs) > _RUNS_PER_STEP // 2 else self.width * 2)
        return len(runs)


class Census:
    """Of one queue in this process."""

    def __init__(self, kafka: KafkaSettings, *, queue: str, topic: str) -> None:
        self._kafka, self._queue, self._topic = kafka, queue, topic
        self._due_s = 0.0
        self._bounds: Mapping[int, Bounds] | None = None
        """Put here by the one thread, taken by the other; and so the tally, the other way."""
        self._counted: Tally | None = None
        self._tally: Tally | None = None

    # The thread that may wait

    def look(self, admin: Admin, partitions: Iterable[int]) -> None:
        """Begin a round if it is time for one, or tell what came of it. Raises TransientError."""
        if self._counted is not None:
            tally, self._counted = self._counted, None
            self._tell(tally)
        elif self._bounds is None and events.are_heard(events.QueueCounted) and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + EVERY_S
            places = [TopicPartition(self._topic, number) for number in sorted(partitions)]
            found = admin.bounds(places) if places else {}
            self._bounds = {place.partition: bounds for place, bounds in found.items()}

    def _tell(self, tally: Tally) -> None:
        places = [(TopicPartition(self._topic, number), first) for number, first in tally.firsts.items()]
        oldest_ms = min(next_times(self._kafka, places).values(), default=None)
        age_s = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1_000)
        counts = tally.counts
        tell(
            events.QueueCounted(
                queue=self._queue,
                ready=counts[Shown.READY],
                leased=counts[Shown.LEASED],
                waiting=counts[Shown.WAITING],
                oldest_age_s=age_s,
            )
        )

    # The worker's thread

    def count(self, machines: Callable[[], Mapping[int, tuple[QueueMachine, int, int]]]) -> None:
        """`machines` gives the open partitions: ledger, log time, and how many wait for a time of their own."""
        if self._bounds is None:
            return
        tally = self._tally or Tally(
            {number: (bounds.start, bounds.stable_end) for number, bounds in self._bounds.items()}
        )
        ours = machines()
        budget = _RUNS_PER_STEP
        while tally.left and budget > 0:
            number = next(iter(tally.left))
            if number in ours:
                machine, now_ms, _ = ours[number]
                budget -= 1 + tally.go_on(number, machine, now_ms)
            else:
                del tally.left[number]
        if tally.left:
            self._tally = tally
            return
        # The ledger has them as ready: what their own headers say is known to who read them.
        delayed = min(sum(count for _, _, count in ours.values()), tally.counts[Shown.READY])
        tally.counts[Shown.READY] -= delayed
        tally.counts[Shown.WAITING] += delayed
        self._counted, self._tally, self._bounds = tally, None, None
