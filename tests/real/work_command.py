"""`penstock work` as a process of a test: what it handles, and what it tells of its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_kafka import eventually

# An app that does nothing with Kafka: what is tried with it is all around it.
IDLE = """
import contextlib, os, pathlib, time
import penstock
from penstock.settings import KafkaSettings, Settings

class Idle(penstock.App):
    def check_workable(self):
        pass

    @contextlib.contextmanager
    def working(self, **named):
        {begins}
        yield []
        {ends}
        pathlib.Path(f"drained-{{os.getpid()}}").touch()

app = Idle("shop", settings=Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1")))
something = 1
"""


class Work:
    """The command while it runs, and what it told of its processes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.events, self.errors = process, list[dict[str, Any]](), list[str]()
        self._threads = [
            threading.Thread(target=lambda: [self.events.append(json.loads(line)) for line in process.stdout or ()]),
            threading.Thread(target=lambda: [self.errors.append(line) for line in process.stderr or ()]),
        ]
        for thread in self._threads:
            thread.start()

    def named(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        eventually(lambda: len(self.named(event)) >= count or self.process.poll() is not None, within_s=60)
        assert len(self.named(event)) >= count, "".join(self.errors)
        return self.named(event)

    def end(self) -> int:
        code = self.process.wait(60)
        for thread in self._threads:
            thread.join(60)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


@contextmanager
def working(folder: Path, *arguments: str) -> Iterator[Work]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "work", *arguments, "--json"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    work = Work(process)
    try:
        yield work
    finally:
        process.kill()
        work.end()
