"""`penstock bench ledger`: appending next to the bare producer, reading back, and replaying."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable

from penstock.bench.ground import Ground
from penstock.bench.report import BenchReport, Bound, alternating, median_ratio
from penstock.kafka.bare import BareProducer
from penstock.ledger.codec import encode
from penstock.ledger.counter import Counter, CounterAdded, CounterFounded, CounterTaken
from penstock.ledger.kafka_log import KafkaLog, open_ledger
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail, monotonic_ms, read_to_end
from penstock.ledger.topics import make_ledger
from penstock.settings import KafkaSettings

RECORD_BYTES = 100
RECORD = CounterTaken("w" * (RECORD_BYTES - len(encode(CounterTaken("w" * 40))) + 40))
VALUE = encode(RECORD)

BOUNDS = {
    "readback_p50_ms": Bound("at most", 10),
    "replay_records_per_s": Bound("at least", 200_000),
    "append_ratio": Bound("at least", 0.5),
}

Told = Callable[[str], None]


def measure(settings: KafkaSettings, *, quick: bool, told: Told) -> BenchReport:
    runs = 5 if quick else 9
    append_count = 50_000 if quick else 200_000
    replay_count = 200_000 if quick else 1_000_000
    with Ground(settings) as ground:
        figures = {
            **_append(ground, runs, append_count, told),
            **_read_back(ground, 100 if quick else 1_000, told),
            **_replay(ground, runs, replay_count, told),
        }
    return BenchReport(bench="ledger", figures=figures, bounds=BOUNDS, runs=runs)


def _append(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """Records/s from the first append to the last acknowledgement, ours (encoded each time) and the bare producer's."""
    topic = _new_ledger(ground)
    log, snapshots = open_ledger(ground.kafka, topic)
    bare = BareProducer(ground.kafka)

    def ours() -> float:
        began = time.perf_counter()
        for _ in range(count):
            log.append(0, encode(RECORD))
        log.flush(120_000)
        return count / (time.perf_counter() - began)

    def theirs() -> float:
        began = time.perf_counter()
        bare.send_all(topic, 0, VALUE, count)
        return count / (time.perf_counter() - began)

    ours(), theirs()
    ones, others = alternating(runs, ours, theirs, told=lambda run: told(f"append, {run}"))
    log.close()
    snapshots.close()
    return {
        "append_ratio": median_ratio(ones, others),
        "append_records_per_s": statistics.median(ones),
        "bare_append_records_per_s": statistics.median(others),
        "round_trip_records_per_s": _round_trips(ground, runs, count, told),
    }


def _round_trips(ground: Ground, runs: int, count: int, told: Told) -> float:
    """Records/s from the first append to the last verdict: with tickets, read back by the same process."""
    rates = []
    for number in range(runs):
        told(f"round trip, run {number + 1} of {runs}")
        tail = _opened(ground)
        began = time.perf_counter()
        waiting = count
        for sent in range(1, count + 1):
            tail.append(0, RECORD)
            if sent % 5_000 == 0:
                waiting -= len(tail.step(0))
        while waiting:
            waiting -= len(tail.step(100))
        rates.append(count / (time.perf_counter() - began))
        tail.close()
    return statistics.median(rates)


def _read_back(ground: Ground, count: int, told: Told) -> dict[str, float]:
    """From before an append until its verdict, one at a time with a pause between."""
    told(f"read-back, {count} times")
    tail = _opened(ground)
    spans_ms = []
    for _ in range(count + 10):
        began = time.perf_counter()
        ticket = tail.append(0, RECORD)
        while ticket.verdict is None:
            tail.step(100)
        spans_ms.append((time.perf_counter() - began) * 1_000)
        time.sleep(0.005)
    tail.close()
    spans_ms = sorted(spans_ms[10:])
    return {"readback_p50_ms": statistics.median(spans_ms), "readback_p99_ms": spans_ms[int(len(spans_ms) * 0.99)]}


def _replay(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """Records/s from an opened ledger to its end: reading from the broker, decoding and judging."""
    told(f"replay, writing {count:,} records")
    topic = _new_ledger(ground)
    writer = _tail(*open_ledger(ground.kafka, topic))
    writer.follow([0])
    writer.append(0, CounterFounded(60_000))
    writer.append(0, CounterTaken("bench"))
    for number in range(count):
        writer.log.append(0, encode(CounterAdded(1, number)))
    writer.log.flush(120_000)
    rates = []
    for number in range(runs):
        told(f"replay, run {number + 1} of {runs}")
        log, snapshots = open_ledger(ground.kafka, topic)
        reader = _tail(log, snapshots)
        began = time.perf_counter()
        reader.follow([0])
        read_to_end(reader, [0])
        rates.append(count / (time.perf_counter() - began))
        _must_be(reader.fold(0).machine.total, count)
        reader.close()
    writer.close()
    return {"replay_records_per_s": statistics.median(rates)}


def _must_be(total: int, count: int) -> None:
    if total != count:
        raise ValueError(f"the replay counted {total}, not {count}")


def _new_ledger(ground: Ground) -> str:
    name = f"{ground.prefix}{uuid.uuid4().hex[:8]}"
    make_ledger(ground.kafka, name, partitions=1)
    return name


def _opened(ground: Ground) -> Tail[Counter]:
    tail = _tail(*open_ledger(ground.kafka, _new_ledger(ground)))
    tail.follow([0])
    return tail


def _tail(log: KafkaLog, snapshots: Snapshots) -> Tail[Counter]:
    return Tail(
        log,
        snapshots,
        machine=Counter,
        instance=f"bench-{uuid.uuid4().hex[:8]}",
        monotonic_ms=monotonic_ms,
        fresh_ms=1_000,
        snapshot_every=10**9,
    )
