"""A worker of a bench's queue as a process of its own: `python -m penstock.bench.queue_worker BOOTSTRAP JSON`.

It says on stdout, a line per call of its handler, what the call's kind tells: see `_handlers`. It stops in order when
its stdin ends. Told to rebuild, it reads the ledger once, says how long that took and how much memory, and ends.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.bench.child import Child
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import Tail, monotonic_ms, read_to_end
from penstock.queue.message import Batch, Message, Retry
from penstock.queue.names import ledger_topic
from penstock.queue.queue import Queue
from penstock.queue.solitude import Solitude
from penstock.queue.state import QueueMachine
from penstock.queue.writers import Writers
from penstock.settings import ClaimsSettings, KafkaSettings, SendSettings, Settings
from penstock.values import duration

Kind = Literal["count", "stamp", "place", "hold", "rebuild"]
"""What a worker does:

`count`    batches; says how many so far, and its CPU seconds; puts off what says so for an hour; at last, megabytes
`stamp`    single messages that hold the time they were sent; says how long ago that was
`place`    batches; says the time of day, and each message's place
`hold`     single messages that it never finishes; says one line for each
`rebuild`  says seconds and megabytes
"""

GROUP = "bench"
PUT_OFF = b"later"
_MB = 1 << 20


@dataclass(slots=True)
class WorkerProcess(Child):
    """The process, and what it says."""

    lines: list[list[str]] = field(default_factory=list)

    @classmethod
    def started(cls, settings: Settings, *, topic: str, kind: Kind, **given: Any) -> WorkerProcess:
        """`given` goes to the queue; `batch` and `concurrency` to its handler."""
        told = {
            "topic": topic,
            "kind": kind,
            "prefix": settings.topic_prefix,
            "ledger": settings.claims.topic,
            "partitions": settings.claims.partitions,
            "heartbeat_ms": int(settings.claims.heartbeat),
            "given": given,
        }
        return cls.running(__name__, settings.kafka.bootstrap_servers, json.dumps(told))

    def hear(self, words: list[str]) -> None:
        self.lines.append(words)


def queue_on(settings: Settings, topic: str, *, group: str, **given: Any) -> Queue:
    """The queue on a topic; `given` are fields of QueueSettings."""

    def writers() -> Writers:
        return Writers(settings.kafka, SendSettings())

    return Queue(settings, topic, group=group, writers=writers, solitude=Solitude(), **given)


def opened_tail(settings: Settings, topic: str) -> Tail[QueueMachine]:
    """The ledger of the bench's queue on that topic, to be read."""
    log, snapshots = open_ledger(settings.kafka, ledger_topic(settings, topic=topic, group=GROUP))
    return Tail(
        log,
        snapshots,
        machine=QueueMachine,
        instance="bench",
        monotonic_ms=monotonic_ms,
        fresh_ms=10_000,
        snapshot_every=settings.queue.snapshot_every,
    )


def peak_mb() -> float:
    """The most memory that this process ever had."""
    status = Path("/proc/self/status")
    if status.exists():
        # The other figure counts what the process had before it became this program: its parent's memory.
        return next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM")) / 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (_MB if sys.platform == "darwin" else 1_024)


def main() -> None:
    told = json.loads(sys.argv[2])
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=sys.argv[1]),
        topic_prefix=told["prefix"],
        claims=ClaimsSettings(
            topic=told["ledger"],
            partitions=told["partitions"],
            heartbeat=duration(f"{told['heartbeat_ms']}ms"),
        ),
    )
    if told["kind"] == "rebuild":
        _rebuild(settings, told["topic"])
        return
    given = told["given"]
    calling = {name: given.pop(name) for name in ("batch", "concurrency") if name in given}
    queue = queue_on(settings, told["topic"], group=GROUP, **given)
    queue.handler(**calling)(_handlers[told["kind"]])
    _work(queue)
    if told["kind"] == "count":
        _say(peak_mb())


def _work(queue: Queue) -> None:
    station = queue.station()
    station.start()
    sys.stdin.read()
    # What holds messages for ever would use the whole time of grace.
    station.stop(duration("1s"))
    station.join()
    if station.failure is not None:
        raise station.failure


# Handlers

_counted = 0


def _count(messages: Batch) -> list[Retry | None] | None:
    global _counted
    values = messages.values()
    _counted += len(values)
    _say(_counted, time.process_time())
    if PUT_OFF not in values:
        return None
    return [Retry("1h") if value == PUT_OFF else None for value in values]


def _stamp(message: Message) -> None:
    _say(time.monotonic() - float(message.value or b""))


def _place(messages: Batch) -> None:
    now_s = time.time()
    _say(now_s, *(f"{message.partition}:{message.offset}" for message in messages))


def _hold(message: Message) -> None:
    _say(message.partition, message.offset)
    threading.Event().wait()


_handlers: dict[str, Callable[..., Any]] = {"count": _count, "stamp": _stamp, "place": _place, "hold": _hold}


def _say(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


# Rebuilding


def _rebuild(settings: Settings, topic: str) -> None:
    tail = opened_tail(settings, topic)
    began = time.perf_counter()
    tail.follow([0])
    read_to_end(tail, [0])
    span_s = time.perf_counter() - began
    _say(span_s, peak_mb(), len(tail.fold(0).machine.cells))
    tail.close()


if __name__ == "__main__":
    main()
