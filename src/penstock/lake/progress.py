"""How far the pipelines of a run are, every few seconds, as events: for terminals, metrics and logs alike."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.kafka.topics import Admin
from penstock.lake.lag import PartitionLag, lag_now, lag_of
from penstock.lake.preparing import partitions_of
from penstock.lake.running import Job, Rate, State
from penstock.observe import tell
from penstock.observe.events import LakeProgressed
from penstock.settings import KafkaSettings

log = logging.getLogger("penstock.lake")

LAG_EVERY_S = 5.0


class Watch:
    """Looks at jobs. How old what waits is has to be read from Kafka, so a thread of its own does that."""

    def __init__(self, kafka: KafkaSettings, jobs: Sequence[Job]) -> None:
        self._kafka, self._jobs = kafka, jobs
        self._rates = {job.name: Rate() for job in jobs}
        self._lags: dict[str, list[PartitionLag]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._ask_for_lags, name="lake-lag", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> list[LakeProgressed]:
        """How far all of them are; whoever listens to events is told too."""
        seen = [self._seen(job) for job in self._jobs]
        for each in seen:
            tell(each)
        return seen

    def _seen(self, job: Job) -> LakeProgressed:
        progress = job.progress
        now_ms = time.time_ns() // 1_000_000
        messages, seconds = lag_now(self._lags.get(job.name, ()), progress.stored, now_ms)
        return LakeProgressed(
            pipeline=job.name,
            state=job.state.value,
            version=progress.version,
            rows=progress.rows,
            bad=progress.bad,
            rows_per_second=round(self._rates[job.name].seen(progress.rows, at=time.monotonic()), 1),
            lag_messages=messages if job.name in self._lags else progress.lag,
            lag_seconds=round(seconds, 3),
        )

    def _ask_for_lags(self) -> None:
        while not self._stopping.wait(LAG_EVERY_S):
            for job in self._jobs:
                if job.state is State.RUNNING and not self._stopping.is_set():
                    self._ask_for_lag(job)

    def _ask_for_lag(self, job: Job) -> None:
        try:
            with Admin(self._kafka) as admin:
                partitions = partitions_of(admin, job.options.topic)
                self._lags[job.name] = lag_of(self._kafka, admin, job.progress.stored, partitions)
        except PenstockError:
            return  # the pipeline itself says what is wrong with the broker
        except Exception:
            log.exception("the lag of pipeline %s is not known", job.name)
