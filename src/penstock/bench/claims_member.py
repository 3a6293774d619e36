"""A member of a bench's group as a process of its own: `python -m penstock.bench.claims_member BOOTSTRAP JSON`.

It says on stdout, a line per batch: the time (of the machine's monotonic clock), partition, first offset, one past the
last, how many. It stops in order when its stdin ends or says something.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.bench.child import Child
from penstock.claims.group import Group
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

Share = Literal["partitions", "ranges"]


class Handed(NamedTuple):
    """One batch that the member was handed."""

    at_s: float
    partition: int
    start: int
    end: int
    messages: int


@dataclass(slots=True)
class MemberProcess(Child):
    """The process, and what it says it was handed."""

    handed: list[Handed] = field(default_factory=list)

    @classmethod
    def started(cls, settings: Settings, *, topic: str, client: str, share: Share, batch_max: int) -> MemberProcess:
        claims = settings.claims
        told = {
            "topic": topic,
            "client": client,
            "share": share,
            "batch_max": batch_max,
            "prefix": settings.topic_prefix,
            "ledger": claims.topic,
            "partitions": claims.partitions,
            "heartbeat_ms": int(claims.heartbeat),
            "window": claims.window,
        }
        return cls.running(__name__, settings.kafka.bootstrap_servers, json.dumps(told))

    def hear(self, words: list[str]) -> None:
        at_s, *numbers = words
        self.handed.append(Handed(float(at_s), *map(int, numbers)))

    def partitions_since(self, at_s: float) -> set[int]:
        return {each.partition for each in self._newest_first() if each.at_s >= at_s}

    def _newest_first(self) -> Iterator[Handed]:
        # Enough for what was handed out lately; a long run has many lines.
        return reversed(self.handed[-1_000:])


def main() -> None:
    told = json.loads(sys.argv[2])
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=sys.argv[1]),
        topic_prefix=told["prefix"],
        claims=ClaimsSettings(
            topic=told["ledger"],
            partitions=told["partitions"],
            heartbeat=duration(f"{told['heartbeat_ms']}ms"),
            window=told["window"],
        ),
    )
    stopping = threading.Event()
    threading.Thread(target=_stop_when_told, args=(stopping,), daemon=True).start()
    group = Group(settings, "bench", client=told["client"])
    with group.consume([told["topic"]], share=told["share"], batch_max=told["batch_max"]) as messages:
        while not stopping.is_set():
            for batch in messages.batches(timeout_s=0.2):
                first, last = batch.records[0], batch.records[-1]
                print(time.monotonic(), first.partition(), first.offset(), last.offset() + 1, len(batch), flush=True)
                batch.ack()
                if stopping.is_set():
                    break


def _stop_when_told(stopping: threading.Event) -> None:
    sys.stdin.read(1)
    stopping.set()


if __name__ == "__main__":
    main()
