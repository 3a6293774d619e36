"""A worker in a process of its own, for tests that kill it: python queue_process.py SPEC, a JSON object.

It handles payloads like {"n": 7, "do": "sleep", "s": 3}, and writes to a file when it begins and when it ends one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock.crash import CrashHook, armed
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration


class Line(NamedTuple):
    n: int
    attempt: int
    token: int
    what: str
    """begin, end, or lost: ended, and the lease had been lost."""


class Process:
    def __init__(self, settings: Settings, queue: str, log: Path, **given: Any) -> None:
        self._log = log
        spec = {
            "bootstrap": settings.kafka.bootstrap_servers,
            "claims": settings.claims.topic,
            "heartbeat_ms": int(settings.claims.heartbeat),
            "queue": queue,
            "log": str(log),
            **given,
        }
        self.child = subprocess.Popen([sys.executable, __file__, json.dumps(spec)])

    def lines(self) -> list[Line]:
        if not self._log.exists():
            return []
        whole = self._log.read_text().rpartition("\n")[0]
        return [Line(*map(int, line.split()[:3]), line.split()[3]) for line in whole.splitlines()]

    def end(self) -> None:
        self.child.kill()
        self.child.wait(60)


@contextmanager
def processes(settings: Settings, queue: str, folder: Path, *names: str, **given: Any) -> Iterator[list[Process]]:
    running = [Process(settings, queue, folder / name, **given) for name in names]
    try:
        yield running
    finally:
        for process in running:
            process.end()


def main(spec: dict[str, Any]) -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=spec["bootstrap"]),
        claims=ClaimsSettings(topic=spec["claims"], partitions=2, heartbeat=duration(spec["heartbeat_ms"] / 1_000)),
    )
    app = penstock.App("shop", settings=settings)
    orders = app.queue(spec["queue"], **spec.get("options", {}))
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @orders.handler(**spec.get("handler", {}))
    def handle(order: dict[str, Any], message: penstock.Message) -> None:
        def write(what: str) -> None:
            os.write(log, f"{order['n']} {message.attempt} {message.token} {what}\n".encode())

        write("begin")
        match order.get("do"):
            case "exit":
                os._exit(7)
            case "fail" if message.attempt <= order.get("times", 1_000):
                raise ValueError("it fails")
            case "sleep":
                time.sleep(order["s"])
        write("lost" if message.lease_lost else "end")

    with armed(_death_at(spec["die_at"], spec.get("passes", 0))) if "die_at" in spec else nullcontext():
        app.work()


def _death_at(point: str, passes: int) -> CrashHook:
    """Kills this process at that crash point, when it was passed so often."""
    passed: list[str] = []

    def hook(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) > passes:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
