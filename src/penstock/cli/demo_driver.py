"""The driver of the demo's lake, as a process of its own: `python -m penstock.cli.demo_driver BOOTSTRAP FOLDER MODE`.

It lands the orders of the demo's queue in a Delta table and says on stdout what happens, a JSON object each: `landed`
after every commit, `missing` when there is no Spark here, `failed`, and at the end what it counts in the table. In the
mode `hold` it stops with the files of its second batch written and not committed, says `held`, and waits to be killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.demo_worker import QUEUE
from penstock.crash import CrashHook, armed
from penstock.errors import PenstockError, Unavailable
from penstock.lake.pipeline import Pipeline
from penstock.lake.session import spark_session
from penstock.lake.session_end import end_session
from penstock.settings import KafkaSettings, LakeSettings, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_ID = "penstock-demo-lake"
TABLE = "orders"
BATCH = 2_500

_LOOK_S = 0.2


def options(folder: Path) -> dict[str, object]:
    return {
        "app_id": APP_ID,
        "topic": QUEUE,
        "table": str(folder / TABLE),
        "format": "text",
        "transforms": {"order": "cast(value AS INT)", "day": "to_date(kafka.timestamp)"},
        "partition_by": ["day"],
        "max_messages_per_batch": BATCH,
        "max_offsets_per_trigger": BATCH,
        "ends_at_latest_offsets": True,
    }


def main() -> None:
    bootstrap, folder, mode = sys.argv[1:]
    voice = _voice()
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=bootstrap), lake=LakeSettings(master="local[2]", driver_memory="1g")
    )
    try:
        session = spark_session(settings.lake)
    except Unavailable as missing:
        voice.says(missing=missing.what, next=missing.next_step)
        return
    try:
        with armed(voice.passing(holds=mode == "hold")):
            _land(Pipeline(options(Path(folder)), settings, session=session))
        voice.says(**_counted(session, folder))
    except PenstockError as failure:
        voice.says(failed=failure.what, next=failure.next_step)
    finally:
        end_session(session)


def _land(pipeline: Pipeline) -> None:
    parent = os.getppid()
    pipeline.start()
    while not pipeline.wait(_LOOK_S):
        if os.getppid() != parent:
            os._exit(1)  # nobody is left to kill us
    if pipeline.failure is not None:
        raise pipeline.failure


def _counted(session: SparkSession, folder: str) -> dict[str, int]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = session.read.format("delta").load(f"{folder}/{TABLE}")
    (counts,) = rows.select(
        F.count("*").alias("rows"),
        F.count_distinct("_partition", "_offset").alias("distinct"),
        F.count_distinct("order").alias("orders"),
    ).collect()
    return dict(counts.asDict())


class _Voice:
    """Speaks where Spark's Java, which writes to our stdout too, does not reach."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._commits = 0

    def says(self, **what: object) -> None:
        os.write(self._descriptor, (json.dumps(what) + "\n").encode())

    def passing(self, *, holds: bool) -> CrashHook:
        def hook(point: str) -> None:
            if point == "lake.committed":
                self._commits += 1
                self.says(landed=self._commits)
            if point == "lake.files_written" and holds and self._commits:
                self.says(held=True)
                threading.Event().wait()

        return hook


def _voice() -> _Voice:
    voice = _Voice(os.dup(1))
    os.dup2(2, 1)
    return voice


if __name__ == "__main__":
    main()
