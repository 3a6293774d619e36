"""Where the bench of the lake works: a Spark session, topics of orders, and tables that go when they are measured."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.bench.ground import Ground
from penstock.errors import Unavailable
from penstock.kafka.writer import Writer
from penstock.lake.pipeline import Pipeline
from penstock.lake.session import spark_session
from penstock.settings import LakeSettings, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 8
PATIENCE_S = 600.0
COLUMNS = (
    "id BIGINT, customer STRING, product STRING, quantity INT, price DOUBLE, currency STRING, at TIMESTAMP, "
    "paid BOOLEAN, city STRING, note STRING"
)

_CITIES = ("Ghent", "Porto", "Turku", "Lyon", "Graz", "Brno", "Cork")
_CURRENCIES = ("EUR", "CHF", "SEK")
_WORDS = ("doors", "leave", "bells", "gates", "front", "yards", "desks", "gifts")

Told = Callable[[str], None]


class LakeGround:
    """A session as the lake has it by default, and a folder for tables; what was made goes when the bench is over."""

    def __init__(self, ground: Ground, session: SparkSession | None = None) -> None:
        self.ground = ground
        self.settings = Settings(kafka=ground.kafka, lake=LakeSettings())
        self._given = session
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-lake-"))
        self.session = self._given or spark_session(self.settings.lake)
        self._gateway: Any = self.session.sparkContext._gateway
        self._java = process(self._gateway.proc.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given is None:
            self.session.stop()
            self._gateway.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def topic(self, name: str, count: int) -> str:
        """A topic with so many orders, spread evenly."""
        topic = self.ground.topic(name, partitions=PARTITIONS)
        with Writer(self.ground.kafka) as writer:
            for number in range(count):
                writer.send(topic, number % PARTITIONS, order(number))
            left = writer.flush(120_000)
        if left or writer.failures:
            raise ValueError(f"{left + writer.failures} of {count} messages could not be written")
        return topic

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """Where a table may be, for as long as this lasts."""
        place = self.folder / self.fresh(name)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def fresh(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"

    def pipeline(self, topic: str, place: Path, **options: object) -> Pipeline:
        given = pipeline_options(topic, place, app_id=self.fresh("bench"), **options)
        # Spark's own sinks take no lock; what ours cost is for each run, not for each batch, and `recovery_s` has it.
        return Pipeline(given, self.settings, session=self.session, lock=False)

    def cpu_s(self) -> float:
        """CPU seconds so far, of Java and of Python."""
        return float(sum(self._java.cpu_times()[:2])) + time.process_time()

    def heap_mb(self) -> float:
        """What is still in use after a collection."""
        java = self._gateway.jvm.java.lang
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        return float(runtime.totalMemory() - runtime.freeMemory()) / (1 << 20)


def pipeline_options(topic: str, place: Path, *, app_id: str, **options: object) -> dict[str, object]:
    return {"app_id": app_id, "topic": topic, "table": str(place), "columns": COLUMNS, **options}


def order(number: int) -> bytes:
    """A message of about 250 bytes, unlike its neighbours."""
    mixed = number * 2_654_435_761 % (1 << 32)
    second = mixed % 86_400
    return json.dumps(
        {
            "id": number,
            "customer": f"customer-{mixed % 100_000:06}",
            "product": f"product-{mixed % 5_003:05}",
            "quantity": mixed % 9 + 1,
            "price": mixed % 100_000 / 100,
            "currency": _CURRENCIES[mixed % 3],
            "at": f"2031-05-01T{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}.{mixed % 1_000:03}Z",
            "paid": mixed % 4 > 0,
            "city": _CITIES[mixed % 7],
            "note": " ".join(_WORDS[mixed >> shift & 7] for shift in range(0, 30, 3)),
        },
        separators=(",", ":"),
    ).encode()


def process(pid: int) -> Any:
    try:
        import psutil
    except ImportError as missing:
        raise Unavailable("measuring processes needs psutil", next_step="pip install 'penstock[bench]'") from missing
    return psutil.Process(pid)


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise ValueError(f"{what} did not come about in {PATIENCE_S:g} s")
        time.sleep(0.02)


def commits(log: Path) -> list[Path]:
    """The files of a Delta log, or of the log of Spark's file sink, in the order of their versions."""
    found = [path for path in log.iterdir() if path.stem.isdigit()] if log.exists() else []
    return sorted((path for path in found if path.suffix in ("", ".json", ".compact")), key=lambda path: int(path.stem))


def actions(commit: Path) -> Iterator[dict[str, Any]]:
    """What a version of a Delta log says."""
    return (json.loads(line) for line in commit.read_text("utf-8").splitlines())
