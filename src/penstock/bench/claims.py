"""`penstock bench claims`: claiming, replaying, taking over, and consuming next to the bare consumer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

from penstock.bench.claims_member import MemberProcess, Share
from penstock.bench.ground import Ground
from penstock.bench.report import BenchReport, Bound, alternating, median_ratio
from penstock.claims.batch import Batch
from penstock.claims.group import Group
from penstock.claims.placement import coordination_topic, genesis
from penstock.claims.records import Beat, Claimed, ClaimReleased, Heartbeat, Slot
from penstock.claims.running import opened_tail
from penstock.claims.state import Claims
from penstock.errors import Unavailable
from penstock.kafka.bare import BareConsumer
from penstock.kafka.topics import Admin
from penstock.ledger.codec import Record, encode
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import Tail, read_to_end
from penstock.ledger.topics import make_ledger
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

HEARTBEAT_S = 2.0
PARTITIONS = 8
VALUE = b"m" * 100
BATCH_MAX = 5_000
PATIENCE_S = 120.0

BOUNDS = {
    "claim_p50_ms": Bound("at most", 10),
    "replay_records_per_s": Bound("at least", 150_000),
    "takeover_killed_s": Bound("at most", 1.5),
    "takeover_released_s": Bound("at most", 1),
    "consume_ratio": Bound("at least", 0.6),
    "ranges_ratio": Bound("at least", 0.5),
    "traffic_growth": Bound("at most", 1.5),
}

Told = Callable[[str], None]


def measure(kafka: KafkaSettings, *, quick: bool, told: Told) -> BenchReport:
    runs = 3 if quick else 7
    with Ground(kafka) as ground:
        figures = {
            **_claim(ground, 100 if quick else 500, told),
            **_replay(ground, runs, 100_000 if quick else 500_000, told),
            **_takeover(ground, 2 if quick else 7, told),
            **_consume(ground, runs, 400_000 if quick else 2_000_000, told),
            **_ranges(ground, runs, 400_000 if quick else 2_000_000, told),
            **_traffic(ground, 8 if quick else 20, told),
            **_idle(ground, 10 if quick else 60, told),
        }
    return BenchReport(bench="claims", figures=figures, bounds=BOUNDS, runs=runs)


# The ledger


def _claim(ground: Ground, count: int, told: Told) -> dict[str, float]:
    """From before a claim is appended until its verdict, one at a time; each is given back before the next."""
    told(f"claim, {count} times")
    settings = ground.settings(partitions=1)
    slot = Slot("bench", "lock")
    tail = opened_tail(settings, "bench")
    tail.follow([0])
    _asked(tail, genesis(settings.claims))
    spans_ms = []
    for _ in range(count + 10):
        began = time.perf_counter()
        epoch = _asked(tail, Claimed(slot, "c", "bench"))
        spans_ms.append((time.perf_counter() - began) * 1_000)
        _asked(tail, ClaimReleased(slot, "c", "bench", epoch))
        time.sleep(0.005)
    tail.close()
    spans_ms = sorted(spans_ms[10:])
    return {"claim_p50_ms": statistics.median(spans_ms), "claim_p99_ms": spans_ms[int(len(spans_ms) * 0.99)]}


def _asked(tail: Tail[Claims], record: Record) -> int:
    """The offset at which a record was accepted."""
    ticket = tail.append(0, record)
    while ticket.verdict is None:
        tail.step(100)
    if not ticket.verdict.is_accepted or ticket.offset is None:
        raise ValueError(f"{record} was not accepted: {ticket.verdict.reason}")
    return ticket.offset


def _replay(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """Records/s from an opened coordination log to its end: heartbeats with one slot each, and with eight."""
    return {
        "replay_records_per_s": _replayed(ground, runs, count, 1, told),
        "replay_records_of_8_slots_per_s": _replayed(ground, runs, count // 4, 8, told),
    }


def _replayed(ground: Ground, runs: int, count: int, beats: int, told: Told) -> float:
    told(f"replay, writing {count:,} heartbeats of {beats} slots")
    settings = ground.settings(partitions=1)
    slots = [Slot("bench", "orders", number) for number in range(8)]
    topic = coordination_topic(settings)
    make_ledger(settings.kafka, topic, partitions=1)
    log, snapshots = open_ledger(settings.kafka, topic)
    for record in (genesis(settings.claims), *(Claimed(slot, "c", "i") for slot in slots)):
        log.append(0, encode(record))
    for number in range(count):
        told_of = ((number + each) % 8 for each in range(beats))
        log.append(0, encode(Heartbeat("c", "i", tuple(Beat(slots[each], 1 + each, number) for each in told_of))))
    log.flush(120_000)
    log.close()
    snapshots.close()
    rates = []
    for number in range(runs):
        told(f"replay, run {number + 1} of {runs}")
        tail = opened_tail(settings, "bench")
        began = time.perf_counter()
        tail.follow([0])
        read_to_end(tail, [0])
        rates.append(count / (time.perf_counter() - began))
        if tail.fold(0).machine.slot(slots[(count - 1) % 8]).position != count - 1:
            raise ValueError("the replay did not come to the position of the last heartbeat")
        tail.close()
    return statistics.median(rates)


# Taking over


def _takeover(ground: Ground, runs: int, told: Told) -> dict[str, float]:
    """From the end of one of two members to the first message of its partitions that the other is handed."""
    settings, topic = ground.settings(heartbeat=HEARTBEAT_S), ground.topic("takeover", partitions=PARTITIONS)
    killed: list[float] = []
    released: list[float] = []
    successor = _member(settings, topic, "successor")
    try:
        with ground.fed(topic, partitions=PARTITIONS, per_s=400, value=VALUE):
            for number in range(2 * runs):
                told(f"takeover, run {number + 1} of {2 * runs}")
                spans = killed if number % 2 == 0 else released
                spans.append(_taken_over(settings, topic, successor, is_killed=number % 2 == 0, number=number))
    finally:
        successor.end()
    return {
        "takeover_killed_s": statistics.median(killed) - 2 * HEARTBEAT_S,
        "takeover_killed_max_s": max(killed) - 2 * HEARTBEAT_S,
        "takeover_released_s": statistics.median(released),
        "takeover_released_max_s": max(released),
    }


def _taken_over(settings: Settings, topic: str, successor: MemberProcess, *, is_killed: bool, number: int) -> float:
    victim = _member(settings, topic, f"victim-{number}")
    try:
        half = PARTITIONS // 2
        _wait(lambda: all(len(each.partitions_since(_now() - 0.5)) == half for each in (victim, successor)))
        # Anywhere between two heartbeats.
        time.sleep(HEARTBEAT_S / 3 * (number % 7) / 7)
        theirs = victim.partitions_since(_now() - 0.5)
        began = _now()
        if is_killed:
            victim.kill()
        else:
            victim.stop()
        _wait(lambda: bool(successor.partitions_since(began) & theirs))
        return min(each.at_s for each in successor.handed if each.at_s >= began and each.partition in theirs) - began
    finally:
        victim.end()


# Consuming


def _consume(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """Messages/s from the first batch to the last, at least once, next to the bare consumer of the same topic."""
    told(f"consume, writing {count:,} messages")
    topic = ground.filled("consume", partitions=PARTITIONS, count=count, value=VALUE)
    settings = ground.settings()
    numbers = iter(range(1_000))

    def ours() -> float:
        group = Group(settings, f"bench-{next(numbers)}", client="bench")
        with group.consume([topic], batch_max=BATCH_MAX, outstanding_max=10 * BATCH_MAX) as messages:
            return _rate((_acked(batch) for batch in messages.batches(PATIENCE_S)), count)

    ones, others = alternating(
        runs, ours, lambda: _bare(ground, topic, PARTITIONS, count), told=lambda run: told(f"consume, {run}")
    )
    return {
        "consume_ratio": median_ratio(ones, others),
        "consume_messages_per_s": statistics.median(ones),
        "bare_messages_per_s": statistics.median(others),
    }


def _acked(batch: Batch) -> int:
    batch.ack()
    return len(batch)


def _bare(ground: Ground, topic: str, partitions: int, count: int) -> float:
    consumer = BareConsumer(ground.kafka, [TopicPartition(topic, number) for number in range(partitions)])
    try:
        return _rate(consumer.counts(BATCH_MAX), count)
    finally:
        consumer.close()


def _rate(counts: Iterable[int], count: int) -> float:
    """Messages/s behind the first batch, which only says that everything is set up."""
    began, first, seen = 0.0, 0, 0
    for number in counts:
        if not seen:
            began, first = time.perf_counter(), number
        seen += number
        if seen >= count:
            return (seen - first) / (time.perf_counter() - began)
    raise ValueError(f"only {seen:,} of {count:,} messages came")


def _ranges(ground: Ground, runs: int, count: int, told: Told) -> dict[str, float]:
    """Messages/s of four member processes on one partition together, next to the bare consumer of it."""
    told(f"ranges, writing {count:,} messages")
    topic = ground.filled("ranges", partitions=1, count=count, value=VALUE)
    ones, others = alternating(
        runs,
        lambda: _shared(ground, topic, count),
        lambda: _bare(ground, topic, 1, count),
        told=lambda run: told(f"ranges, {run}"),
    )
    return {"ranges_ratio": median_ratio(ones, others), "ranges_messages_per_s": statistics.median(ones)}


def _shared(ground: Ground, topic: str, count: int) -> float:
    settings = ground.settings()
    members = [_member(settings, topic, f"member-{number}", share="ranges") for number in range(4)]
    try:
        _wait(lambda: sum(each.messages for member in members for each in member.handed) >= count)
    finally:
        for member in members:
            member.stop()
        for member in members:
            member.end()
    times = [each.at_s for member in members for each in member.handed]
    return count / (max(times) - min(times))


# Being quiet


def _traffic(ground: Ground, seconds: int, told: Told) -> dict[str, float]:
    """Coordination records/s while 100,000 messages/s are consumed, against 1,000."""
    quiet = _records_per_s(ground, "quiet", 1_000, seconds, told)
    busy = _records_per_s(ground, "busy", 100_000, seconds, told)
    return {"traffic_growth": busy / quiet, "coordination_records_per_s": busy}


def _records_per_s(ground: Ground, name: str, per_s: int, seconds: int, told: Told) -> float:
    told(f"traffic at {per_s:,} messages/s, {seconds} s")
    settings, topic = ground.settings(), ground.topic(name, partitions=PARTITIONS)
    ledger = [TopicPartition(coordination_topic(settings), number) for number in range(settings.claims.partitions)]
    member = _member(settings, topic, "member")
    try:
        with ground.fed(topic, partitions=PARTITIONS, per_s=per_s, value=VALUE), Admin(ground.kafka) as admin:
            _wait(lambda: len(member.partitions_since(_now() - 0.5)) == PARTITIONS)
            began = _now()
            before = sum(bounds.end for bounds in admin.bounds(ledger).values())
            time.sleep(seconds)
            after = sum(bounds.end for bounds in admin.bounds(ledger).values())
            handed = sum(each.messages for each in member.handed if each.at_s >= began)
            if handed < per_s * seconds / 2:
                raise ValueError(f"the member was handed {handed:,} messages, not {per_s * seconds:,}")
            return (after - before) / (_now() - began)
    finally:
        member.end()


def _idle(ground: Ground, seconds: int, told: Told) -> dict[str, float]:
    """What a member costs that has eight partitions and nothing to do."""
    try:
        import psutil
    except ImportError as missing:
        raise Unavailable("measuring processes needs psutil", next_step="pip install 'penstock[bench]'") from missing
    told(f"idle, {seconds} s")
    settings, topic = ground.settings(), ground.topic("idle", partitions=PARTITIONS)
    member = _member(settings, topic, "member")
    try:
        with ground.fed(topic, partitions=PARTITIONS, per_s=100, value=VALUE):
            _wait(lambda: len(member.partitions_since(_now() - 0.5)) == PARTITIONS)
        process = psutil.Process(member.process.pid)
        time.sleep(2)
        cpu_s, resident = sum(process.cpu_times()[:2]), process.memory_info().rss
        time.sleep(seconds)
        return {
            "idle_cpu_percent": (sum(process.cpu_times()[:2]) - cpu_s) / seconds * 100,
            "idle_memory_growth": process.memory_info().rss / resident,
        }
    finally:
        member.end()


def _member(settings: Settings, topic: str, client: str, share: Share = "partitions") -> MemberProcess:
    return MemberProcess.started(settings, topic=topic, client=client, share=share, batch_max=BATCH_MAX)


def _now() -> float:
    return time.monotonic()


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise ValueError(f"it did not come about in {PATIENCE_S:g} s")
        time.sleep(0.005)
