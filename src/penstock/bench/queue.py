"""`penstock bench queue`: handling and sending next to the bare client, and what waiting and growing cost."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable

from penstock.bench.ground import LARGE_BATCH_BYTES, Ground
from penstock.bench.queue_costs import measure_costs, measure_latency, measure_rebuild, measure_redelivery
from penstock.bench.queue_worker import queue_on
from penstock.bench.report import BenchReport, Bound, alternating, median_ratio
from penstock.kafka.bare import BareConsumer, BareProducer, BareShareConsumer
from penstock.queue.message import Batch, Message, Retry
from penstock.queue.queue import Queue
from penstock.queue.sending import Sender
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition, duration

PARTITIONS = 8
VALUE = b"m" * 100
FAILING = b"f" * 100
BATCH = 5_000
IN_HAND_MAX = 20_000
"""For the figures of throughput: the default of 1,000 is for handlers that take their time."""
PATIENCE_S = 120.0

DRAG_COUNT = 3_000_000
"""Runs of two seconds. What the client has read ahead when a run begins lasts for a tenth of that, and until then
neither side waits for the broker: of shorter runs it is so much that each pair says something else.
"""

# The client chooses, as it does for whoever does not care: it fills one partition after the other.
ANY_PARTITION = -1

BOUNDS = {
    "batch_ratio": Bound("at least", 0.5),
    "message_ratio": Bound("at least", 0.12),
    "share_consumer_factor": Bound("at least", 2),
    "send_ratio": Bound("at least", 0.6),
    "latency_p50_ms": Bound("at most", 15),
    "latency_p99_ms": Bound("at most", 60),
    "redelivery_p50_s": Bound("at most", 0.5),
    "redelivery_p99_s": Bound("at most", 2),
    "gaps_cost": Bound("at most", 1.3),
    "backlog_cost": Bound("at most", 1.3),
    "memory_growth": Bound("at most", 1.3),
    "rebuild_s": Bound("at most", 30),
    "rebuild_mb": Bound("at most", 1_000),
    "redelivery_drag": Bound("at least", 0.85),
}

Told = Callable[[str], None]

_numbers = itertools.count()


def measure(kafka: KafkaSettings, *, quick: bool, told: Told) -> BenchReport:
    runs, count = (3, 300_000) if quick else (7, 1_000_000)
    with Ground(kafka) as ground:
        drag = _Drag(ground, told)
        parts: list[Callable[[], dict[str, float]]] = [
            lambda: _handling(ground, runs, count, told),
            lambda: _large_batches(ground, 1 if quick else 5, count, told),
            lambda: measure_sending(ground, runs=runs, count=100_000 if quick else 500_000, told=told),
            lambda: measure_latency(ground, 8 if quick else 30, told),
            lambda: measure_redelivery(ground, 1 if quick else 5, told),
            lambda: measure_costs(ground, 1 if quick else 3, count, told),
            lambda: measure_rebuild(ground, count, told),
        ]
        figures: dict[str, float] = {}
        for part in parts:
            figures |= part()
            drag.measure(1 if quick else 6)
        figures |= drag.figures()
    return BenchReport(bench="queue", figures=figures, bounds=BOUNDS, runs=runs)


# Handling


def _handling(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """Messages/s from the first call of the handler to the last, next to the bare consumers of the same topic."""
    told(f"handling, writing {count:,} messages")
    topic = ground.filled("handling", partitions=PARTITIONS, count=count, value=VALUE)
    batches: list[float] = []
    shares: list[float] = []
    singles: list[float] = []
    defaults: list[float] = []
    bare: list[float] = []
    ways: list[tuple[list[float], Callable[[], float]]] = [
        (bare, lambda: _bare(ground, topic, count)),
        (batches, lambda: _batches(ground, topic, count, batch=BATCH, in_hand_max=IN_HAND_MAX)),
        (shares, lambda: _shared(ground, topic, count)),
        (singles, lambda: _singles(ground, topic, count // 3)),
        (defaults, lambda: _batches(ground, topic, count // 3, batch=500)),
    ]
    for number in range(runs):
        told(f"handling, run {number + 1} of {runs}")
        # There and back, so that what disturbs the machine for a while disturbs neighbours alike.
        for rates, rate in ways if number % 2 == 0 else reversed(ways):
            rates.append(rate())
    return {
        "batch_ratio": median_ratio(batches, bare),
        "message_ratio": median_ratio(singles, bare),
        "share_consumer_factor": median_ratio(batches, shares),
        # The most that any queue on this client could reach: the bare consumer leases and acks nothing.
        "bare_share_consumer_factor": median_ratio(bare, shares),
        "default_batch_ratio": median_ratio(defaults, bare),
        "batch_messages_per_s": statistics.median(batches),
        "single_messages_per_s": statistics.median(singles),
        "share_consumer_messages_per_s": statistics.median(shares),
        "bare_messages_per_s": statistics.median(bare),
    }


def _large_batches(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """The share consumer at its best."""
    told(f"handling of large batches, writing {count:,} messages")
    topic = ground.filled(
        "large-batches", partitions=PARTITIONS, count=count, value=VALUE, batch_bytes=LARGE_BATCH_BYTES
    )
    ones, others = alternating(
        runs,
        lambda: _batches(ground, topic, count, batch=BATCH, in_hand_max=IN_HAND_MAX),
        lambda: _shared(ground, topic, count),
        told=lambda run: told(f"handling of large batches, {run}"),
    )
    return {"large_batch_share_consumer_factor": median_ratio(ones, others)}


class _Tally:
    """Counts what a handler was given, and knows when that was all."""

    def __init__(self, count: int) -> None:
        self._count, self._seen, self._first = count, 0, 0
        self._began = self._ended = 0.0
        self._is_whole = threading.Event()

    def add(self, number: int) -> None:
        if not self._seen:
            self._began, self._first = time.perf_counter(), number
        self._seen += number
        if self._seen >= self._count and not self._is_whole.is_set():
            self._ended = time.perf_counter()
            self._is_whole.set()

    def rate(self) -> float:
        """Messages/s behind the first call, which only says that everything is set up."""
        if not self._is_whole.wait(PATIENCE_S):
            raise ValueError(f"only {self._seen:,} of {self._count:,} messages came")
        return (self._count - self._first) / (self._ended - self._began)


def _batches(ground: Ground, topic: str, count: int, *, batch: int, in_hand_max: int | None = None) -> float:
    queue, tally = _queue(ground, topic, in_hand_max), _Tally(count)

    @queue.handler(batch=batch)
    def handle(messages: Batch) -> None:
        tally.add(len(messages.values()))

    return _worked(ground, queue, tally)


def _singles(ground: Ground, topic: str, count: int) -> float:
    queue, tally = _queue(ground, topic, IN_HAND_MAX), _Tally(count)

    @queue.handler()
    def handle(message: Message) -> None:
        _ = message.value
        tally.add(1)

    return _worked(ground, queue, tally)


def _queue(ground: Ground, topic: str, in_hand_max: int | None) -> Queue:
    return queue_on(ground.settings(), topic, group=f"bench-{next(_numbers)}", in_hand_max=in_hand_max)


def _worked(ground: Ground, queue: Queue, tally: _Tally) -> float:
    with ground.apart():
        station = queue.station()
        station.start()
        try:
            return tally.rate()
        finally:
            station.stop(duration("5s"))
            station.join()


def _bare(ground: Ground, topic: str, count: int) -> float:
    consumer = BareConsumer(ground.kafka, [TopicPartition(topic, number) for number in range(PARTITIONS)])
    try:
        return _rate(consumer.reads(BATCH), count)
    finally:
        consumer.close()


def _shared(ground: Ground, topic: str, count: int) -> float:
    consumer = BareShareConsumer(ground.kafka, f"{topic}-{next(_numbers)}", topic)
    try:
        return _rate(consumer.reads(PATIENCE_S), count)
    finally:
        consumer.close()


def _rate(counts: Iterable[int], count: int) -> float:
    tally, seen = _Tally(count), 0
    for number in counts:
        tally.add(number)
        seen += number
        if seen >= count:
            return tally.rate()
    raise ValueError(f"only {seen:,} of {count:,} messages came")


class _Drag:
    """Messages/s while every hundredth message fails at its first attempt and comes again a little later.

    They lie far behind the head of their partition by then: what the worker could not keep is read again from there.
    The other queue has the same messages, and none of them fails.

    The two sides are closer to each other than elsewhere. It takes many pairs to tell them apart from noise, and they
    are spread over the whole bench, so that no bad minute of the machine decides.
    """

    def __init__(self, ground: Ground, told: Told) -> None:
        told(f"redelivery, writing {DRAG_COUNT:,} messages")
        self._ground, self._told = ground, told
        self._topic = ground.filled(
            "drag", partitions=PARTITIONS, count=DRAG_COUNT, value=VALUE, other=FAILING, every=100
        )
        self._rates: dict[bool, list[float]] = {True: [], False: []}

    def measure(self, pairs: int) -> None:
        for number in range(pairs):
            self._told(f"redelivery, run {number + 1} of {pairs}")
            # Each side goes first half of the time, over all calls of this.
            first = len(self._rates[True]) % 2 == 0
            for fails in first, not first:
                self._rates[fails].append(_with_failures(self._ground, self._topic, DRAG_COUNT, fails=fails))

    def figures(self) -> dict[str, float]:
        return {"redelivery_drag": median_ratio(self._rates[True], self._rates[False])}


def _with_failures(ground: Ground, topic: str, count: int, *, fails: bool) -> float:
    queue, tally, soon = _queue(ground, topic, IN_HAND_MAX), _Tally(count), Retry("100ms")

    @queue.handler(batch=BATCH)
    def handle(messages: Batch) -> dict[int, Retry]:
        values, attempts = messages.values(), messages.attempts()
        failing = [number for number, value in enumerate(values) if value == FAILING]
        new = [number for number in failing if attempts[number] == 1]
        # Each message counts once.
        tally.add(len(values) - len(failing) + len(new))
        return dict.fromkeys(new if fails else [], soon)

    return _worked(ground, queue, tally)


# Sending


def measure_sending(ground: Ground, *, runs: int, count: int, told: Told) -> dict[str, float]:
    """Messages/s from the first send to the last acknowledgement: `send_many`, and the bare idempotent producer.

    Both spread the same value over all partitions. Ours also counts the acknowledgement of every message, and would
    name those that failed.
    """
    topic = ground.topic("sending", partitions=PARTITIONS)
    values = [VALUE] * count
    bare = BareProducer(ground.kafka)
    with Sender(ground.kafka, topic) as sender:

        def ours() -> float:
            began = time.perf_counter()
            sender.send_many(values)
            return count / (time.perf_counter() - began)

        def theirs() -> float:
            began = time.perf_counter()
            bare.send_all(topic, ANY_PARTITION, VALUE, count)
            return count / (time.perf_counter() - began)

        ours(), theirs()
        ones, others = alternating(runs, ours, theirs, told=lambda run: told(f"sending, {run}"))
    return {
        "send_ratio": median_ratio(ones, others),
        "send_messages_per_s": statistics.median(ones),
        "bare_send_messages_per_s": statistics.median(others),
    }
