"""A driver in a process of its own, for tests that kill it: python lake_process.py SPEC, a JSON object.

It starts Spark, then obeys lines of JSON on its standard input and answers each with one. It may be told to die by
SIGKILL at a named crash point, alone, as Java then lives on for a moment, or together with its Java.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.crash import armed
from penstock.errors import PenstockError
from penstock.lake.pipeline import Pipeline
from penstock.lake.session import spark_session
from penstock.settings import KafkaSettings, LakeSettings, Settings


class Driver:
    """The child as its parent sees it."""

    def __init__(
        self, kafka: KafkaSettings, log: Path, *, master: str = "local[2]", spark: Mapping[str, str] | None = None
    ) -> None:
        spec = {"bootstrap": kafka.bootstrap_servers, "master": master, "spark": dict(spark or {})}
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, __file__, json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
        self._log = log

    def start(self, options: Mapping[str, object]) -> dict[str, Any]:
        """Returns when the stream runs, or with what kept it from running; empty if the process died over it."""
        return self.ask("start", options=dict(options))

    def state(self) -> dict[str, Any]:
        """Rows, version, whether it runs, and what it failed with."""
        return self.ask("state")

    def stop(self) -> dict[str, Any]:
        return self.ask("stop")

    def die_at(self, point: str, *, with_java: bool) -> None:
        """Die when this point is passed next."""
        self.ask("die_at", point=point, with_java=with_java)

    def ask(self, do: str, **given: object) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps({"do": do, **given}) + "\n")
            self._child.stdin.flush()
        answer = self._child.stdout.readline()
        return dict(json.loads(answer)) if answer else {}

    def died(self) -> None:
        """Wait until it was killed."""
        assert self._child.wait(120) == -signal.SIGKILL, self._log.read_text()[-3_000:]

    def end(self) -> None:
        """With its Java."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(20)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class _Child:
    def __init__(self, spec: Mapping[str, Any]) -> None:
        lake = LakeSettings(master=spec["master"], driver_memory="1g", spark=spec["spark"])
        self._settings = Settings(kafka=KafkaSettings(bootstrap_servers=spec["bootstrap"]), lake=lake)
        self._session = spark_session(lake)
        self._pipeline: Pipeline | None = None
        self._point, self._with_java = "", False

    def passing(self, point: str) -> None:
        if point == self._point:
            if self._with_java:
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def obey(self, do: str, given: Mapping[str, Any]) -> dict[str, Any]:
        match do:
            case "start":
                # Without locks: two drivers are to meet at the table.
                self._pipeline = Pipeline(given["options"], self._settings, session=self._session, lock=False)
                try:
                    self._pipeline.start()
                except PenstockError as refusal:
                    return _told(refusal)
            case "die_at":
                self._point, self._with_java = given["point"], given["with_java"]
                return {}
            case "stop" if self._pipeline is not None:
                self._pipeline.stop()
        return self._state()

    def _state(self) -> dict[str, Any]:
        if self._pipeline is None:
            return {}
        progress = self._pipeline.progress
        return {
            "is_running": self._pipeline.is_running,
            "rows": progress.rows,
            "bad": progress.bad,
            "version": progress.version,
            "batches": progress.batches,
            **(_told(self._pipeline.failure) if self._pipeline.failure is not None else {}),
        }


def _told(failure: PenstockError) -> dict[str, Any]:
    return {"is_running": False, "failure": type(failure).__name__, "what": str(failure)}


def main(spec: Mapping[str, Any]) -> None:
    # Spark's Java writes to the same standard output; the answers go where it does not reach.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    child = _Child(spec)
    with armed(child.passing):
        for line in sys.stdin:
            asked = json.loads(line)
            answers.write(json.dumps(child.obey(asked.pop("do"), asked)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
