"""A histogram that may be told of many equal values at once: prometheus_client's own takes one at a time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Spread(Collector):
    """How often values were seen, by the bound that they lie below. Threads may share it."""

    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name, self._help, self._labels, self._bounds = name, help, tuple(labels), tuple(bounds)
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, ...], tuple[list[int], float]] = {}
        if not labels:
            self.add((), 0.0, 0)

    def add(self, labels: tuple[str, ...], value: float, times: int = 1) -> None:
        """This value was seen so often."""
        with self._lock:
            counts, total = self._seen.get(labels, ([0] * (len(self._bounds) + 1), 0.0))
            counts[bisect_left(self._bounds, value)] += times
            self._seen[labels] = counts, total + value * times

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        with self._lock:
            seen = {labels: (list(counts), total) for labels, (counts, total) in self._seen.items()}
        for labels, (counts, total) in seen.items():
            family.add_metric(labels, [*self._buckets(counts)], total)
        yield family

    def _buckets(self, counts: list[int]) -> Iterator[tuple[str, int]]:
        below = 0
        for bound, count in zip([*map(float, self._bounds), "+Inf"], counts, strict=True):
            below += count
            yield str(bound), below
