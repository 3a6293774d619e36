"""What `penstock bench queue` measures in processes of their own: latency, redelivery, CPU and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from penstock.bench.ground import Ground
from penstock.bench.queue_worker import GROUP, PUT_OFF, WorkerProcess, opened_tail
from penstock.ledger.codec import encode
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import read_to_end
from penstock.ledger.topics import make_ledger
from penstock.queue.names import ledger_topic
from penstock.queue.records import Acked, QueueFounded, Released, Renewed, Taken
from penstock.queue.sending import Sender
from penstock.settings import Settings

PARTITIONS = 8
VALUE = b"m" * 100
BATCH = 1_000
PATIENCE_S = 180.0

LATENCY_PER_S = 1_000
HELD = 1_000
LEASE_S = 5.0
GAPS = 100_000
BURST = 10_000
BURSTS = 15
RECORDS_PER_GAP = 10

Told = Callable[[str], None]


# Latency


def measure_latency(ground: Ground, seconds: int, told: Told) -> dict[str, float]:
    """From `send_soon` to the call of the handler in another process, one message every millisecond."""
    told(f"latency at {LATENCY_PER_S:,} messages/s, {seconds} s")
    topic = ground.topic("latency", partitions=PARTITIONS)
    worker = WorkerProcess.started(ground.settings(), topic=topic, kind="stamp")
    try:
        with Sender(ground.kafka, topic) as sender:
            _send_until_heard(sender, worker)
            time.sleep(1)
            # A broker that was started a minute ago compiles its code now, and needs a core for that.
            _send_evenly(sender, worker, max(2, seconds // 3))
            already = len(worker.lines)
            _send_evenly(sender, worker, seconds)
    finally:
        worker.end()
    spans_ms = sorted(float(line[0]) * 1_000 for line in worker.lines[already:])
    return {"latency_p50_ms": _percentile(spans_ms, 0.5), "latency_p99_ms": _percentile(spans_ms, 0.99)}


def _send_until_heard(sender: Sender, worker: WorkerProcess) -> None:
    """Every partition is served, and whoever sends is warm."""

    def is_heard() -> bool:
        sender.send_many([_stamped()] * PARTITIONS)
        return len(worker.lines) >= 20 * PARTITIONS

    _wait(is_heard, "a worker that is ready", every_s=0.1)


def _send_evenly(sender: Sender, worker: WorkerProcess, seconds: int) -> None:
    """Returns when all of it was handled."""
    count = seconds * LATENCY_PER_S
    already = len(worker.lines)
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / LATENCY_PER_S - time.monotonic()))
        sender.send_soon(_stamped())
    _wait(lambda: len(worker.lines) >= already + count, "handling of what was sent")


def _stamped() -> bytes:
    return f"{time.monotonic():.6f}".encode().ljust(len(VALUE))


# Redelivery


def measure_redelivery(ground: Ground, runs: int, told: Told) -> dict[str, float]:
    """From the end of the lease of a killed worker to the hand-over of each of its messages to another."""
    spans_s: list[float] = []
    for number in range(runs):
        told(f"redelivery after a kill, run {number + 1} of {runs}")
        spans_s += _redelivered(ground, f"killed-{number}")
    spans_s.sort()
    return {"redelivery_p50_s": _percentile(spans_s, 0.5), "redelivery_p99_s": _percentile(spans_s, 0.99)}


def _redelivered(ground: Ground, name: str) -> list[float]:
    settings = ground.settings(heartbeat="2s")
    topic = ground.filled(name, partitions=PARTITIONS, count=HELD, value=VALUE)
    lease = f"{LEASE_S:g}s"
    victim = WorkerProcess.started(settings, topic=topic, kind="hold", lease=lease)
    other: WorkerProcess | None = None
    try:
        _wait(lambda: bool(victim.lines), "the first message of the worker to be killed")
        _wait(lambda: len(_ends_of_leases(settings, topic)) == HELD, f"{HELD:,} messages in hand", every_s=0.5)
        other = WorkerProcess.started(settings, topic=topic, kind="place", batch=500, lease=lease)
        # Both have their share of the partitions, and all messages are still in the first one's hands.
        time.sleep(4)
        victim.kill()
        ends_s = _ends_of_leases(settings, topic)
        if len(ends_s) != HELD:
            raise ValueError(f"{len(ends_s)} messages were in hand, not {HELD}")
        _wait(lambda: sum(len(line) - 1 for line in other.lines) >= HELD, "the last redelivery")
    finally:
        victim.end()
        if other is not None:
            other.end()
    handed_s = {place: float(line[0]) for line in other.lines for place in line[1:]}
    return [handed_s[place] - end_s for place, end_s in ends_s.items()]


def _ends_of_leases(settings: Settings, topic: str) -> dict[str, float]:
    """For each message in hand, when its lease ends, by the clock of the log."""
    tail = opened_tail(settings, topic)
    numbers = range(PARTITIONS)
    try:
        tail.follow(numbers)
        read_to_end(tail, numbers)
        return {
            f"{number}:{offset}": (lease.renewed_ms + lease.lease_ms) / 1_000
            for number in numbers
            for lease in tail.fold(number).machine.leases.values()
            for start, end in lease.held
            for offset in range(start, end)
        }
    finally:
        tail.close()


# CPU and memory


def measure_costs(ground: Ground, runs: int, backlog: int, told: Told) -> dict[str, float]:
    """CPU per message, with gaps against without, and of a backlog against bursts; memory of a backlog against less."""
    plain: list[float] = []
    gaps: list[float] = []
    large: list[float] = []
    small_mb: list[float] = []
    large_mb: list[float] = []
    for number in range(runs):
        told(f"costs, run {number + 1} of {runs}")
        plain.append(_cpu_of_bursts(ground, f"plain-{number}", gaps=0))
        gaps.append(_cpu_of_bursts(ground, f"gaps-{number}", gaps=GAPS))
        _, less_mb = _backlog(ground, f"less-{number}", backlog // 3)
        cpu_s, more_mb = _backlog(ground, f"more-{number}", backlog)
        large.append(cpu_s)
        small_mb.append(less_mb)
        large_mb.append(more_mb)
    return {
        "gaps_cost": _ratio(gaps, plain),
        "backlog_cost": _ratio(large, plain),
        "cpu_us_per_message": statistics.median(plain) * 1_000_000,
        "memory_growth": _ratio(large_mb, small_mb),
        "worker_mb": max(large_mb),
    }


def _cpu_of_bursts(ground: Ground, name: str, *, gaps: int) -> float:
    """CPU seconds per message of a worker that has so many gaps open, and never much to do."""
    topic = ground.filled(name, partitions=PARTITIONS, count=BURST, value=VALUE)
    ground.fill(topic, partitions=PARTITIONS, count=2 * gaps, value=VALUE, other=PUT_OFF, every=2)
    worker = WorkerProcess.started(ground.settings(), topic=topic, kind="count", batch=BATCH, in_hand_max=10 * BATCH)
    try:
        _wait_for(worker, 2 * gaps + BURST)
        before = len(worker.lines)
        for number in range(1, BURSTS + 1):
            ground.fill(topic, partitions=PARTITIONS, count=BURST, value=VALUE)
            _wait_for(worker, 2 * gaps + BURST + number * BURST)
    finally:
        worker.end()
    return _cpu_s(worker.lines[before - 1], worker.lines[-2])


def _backlog(ground: Ground, name: str, count: int) -> tuple[float, float]:
    """CPU seconds per message of a worker that has so much to catch up with, and its memory."""
    topic = ground.filled(name, partitions=PARTITIONS, count=count, value=VALUE)
    worker = WorkerProcess.started(ground.settings(), topic=topic, kind="count", batch=BATCH, in_hand_max=10 * BATCH)
    try:
        _wait_for(worker, count)
    finally:
        worker.end()
    return _cpu_s(worker.lines[0], worker.lines[-2]), float(worker.lines[-1][0])


def _cpu_s(before: list[str], after: list[str]) -> float:
    """CPU seconds per message between two lines of a worker that counts."""
    return (float(after[1]) - float(before[1])) / (int(after[0]) - int(before[0]))


def _wait_for(worker: WorkerProcess, count: int) -> None:
    _wait(lambda: bool(worker.lines) and int(worker.lines[-1][0]) >= count, f"handling of {count:,} messages")


# Rebuilding


def measure_rebuild(ground: Ground, records: int, told: Told) -> dict[str, float]:
    """Seconds and memory of a process that reads a partition's ledger without a snapshot; a tenth of it is open."""
    told(f"rebuild, writing {records:,} records")
    settings, topic = ground.settings(), f"{ground.prefix}rebuild"
    opened = _write_ledger(settings, topic, records)
    told("rebuild")
    worker = WorkerProcess.started(settings, topic=topic, kind="rebuild")
    worker.process.wait(PATIENCE_S)
    worker.end()
    span_s, peak_mb, runs = worker.lines[0]
    if int(runs) < opened:
        raise ValueError(f"{opened:,} messages should be open, and there are only {runs} runs of offsets")
    return {"rebuild_s": float(span_s), "rebuild_mb": float(peak_mb)}


def _write_ledger(settings: Settings, topic: str, records: int) -> int:
    """Leases of ten messages; of every fourth one a message failed and waits. Returns how many wait."""
    name = ledger_topic(settings, topic=topic, group=GROUP)
    make_ledger(settings.kafka, name, partitions=1)
    log, snapshots = open_ledger(settings.kafka, name)
    log.append(0, encode(QueueFounded(1, "", 0, ("*",))))
    epoch, start, request = 1, 0, 0
    for _ in range(records // RECORDS_PER_GAP):
        for number in range(4):
            request += 1
            log.append(0, encode(Taken("w", request, ((start, start + 10),), 30_000)))
            fails = number == 0
            log.append(0, encode(Acked(epoch, ((start, start + 10 - fails),))))
            if fails:
                log.append(0, encode(Released(epoch, ((start + 9, start + 10),), 3_600_000, True)))
            epoch += 2 + fails
            start += 10
        log.append(0, encode(Renewed("w", ())))
        epoch += 1
    log.flush(120_000)
    log.close()
    snapshots.close()
    return records // RECORDS_PER_GAP


# Small things


def _percentile(spans: Sequence[float], share: float) -> float:
    return spans[min(len(spans) - 1, int(len(spans) * share))]


def _ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(ones) / statistics.median(others)


def _wait(is_so: Callable[[], bool], what: str, *, every_s: float = 0.005) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise ValueError(f"{what} did not come about in {PATIENCE_S:g} s")
        time.sleep(every_s)
