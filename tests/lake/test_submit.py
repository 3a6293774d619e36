"""The module that `spark-submit` runs, started by Spark's own script: what it is given, what it lands, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from lake_faults import books, ends, next_offsets
from lake_ground import Ground
from lake_table import rows_of
from real_kafka import eventually, settings_for, unique

import penstock.lake
from penstock.broker.java import java_home_for_spark
from penstock.lake.session import AVRO_LIMITS, beside_given
from penstock.lake.status import holders
from penstock.settings import ClaimsSettings, Settings
from penstock.values import duration

if TYPE_CHECKING:
    from penstock.broker import Embedded

MODULE = [sys.executable, "-m", "penstock.lake"]
ON_LOOPBACK = ["--master", "local[2]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"]
GOOD = b"\x02\x06abc"
# It says that a text of 1.5 GB follows. Nothing does.
HUGE = b"\x02\x80\xbc\xc1\x96\x0b"
FIELDS = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]


class Submitted:
    """A folder with a configuration, and spark-submit in it."""

    def __init__(self, kafka: Embedded, folder: Path) -> None:
        self.ground = Ground(None, settings_for(kafka.bootstrap), folder)  # type: ignore[arg-type]
        self.claims = ClaimsSettings(topic=unique("claims"), partitions=1, heartbeat=duration("3s"))
        self.folder, self.log = folder, folder / "log"
        (folder / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": FIELDS}))
        (folder / "penstock.toml").write_text(
            f'[kafka]\nbootstrap_servers = "{kafka.bootstrap}"\n'
            f'[claims]\ntopic = "{self.claims.topic}"\npartitions = 1\nheartbeat = "3s"\n'
            f'[lake.orders]\napp_id = "{self.ground.app_id}"\ntopic = "{self.ground.topic}"\n'
            'table = "table"\ndead_letters = "dead"\nformat = "avro"\nschema_file = "order.avsc"\n'
            'allowed_latency = "200ms"\nmax_messages_per_batch = 1\n'
        )

    def start(self, name: str, *given: str) -> subprocess.Popen[bytes]:
        import pyspark

        script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        environment |= {
            "JAVA_HOME": str(java_home_for_spark()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [str(script), *ON_LOOPBACK, *given, said_by("--path"), name, "--config", "penstock.toml"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def said(self) -> str:
        return self.log.read_text()

    def has_all(self) -> bool:
        return (self.ground.table / "_delta_log").exists() and next_offsets(self.ground) == ends(self.ground)

    def is_locked(self) -> bool:
        return bool(holders(Settings(kafka=self.ground.kafka, claims=self.claims), [self.ground.app_id]))


@pytest.fixture
def submitted(penstock_broker: Embedded, tmp_path: Path) -> Iterator[Submitted]:
    made = Submitted(penstock_broker, tmp_path)
    yield made
    made.ground.close()


def said_by(*arguments: str) -> str:
    return subprocess.run([*MODULE, *arguments], capture_output=True, text=True, timeout=120, check=True).stdout.strip()


def end(process: subprocess.Popen[bytes]) -> None:
    """With its Python, if a test failed."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_submit_lands_each_message_once_and_ends_on_sigterm(submitted: Submitted) -> None:
    ground = submitted.ground
    ground.send_raw(0, *[GOOD] * 50, HUGE)
    ground.send_raw(1, *[GOOD] * 50)
    process = submitted.start(
        "orders",
        *("--jars", said_by("--jars")),
        *("--conf", "spark.logConf=true", "--conf", "spark.scheduler.mode=FIFO"),
        *("--conf", "spark.executor.extraJavaOptions=-Dgiven=yes"),
    )
    try:
        eventually(lambda: submitted.has_all() or process.poll() is not None, within_s=300)
        assert process.poll() is None, submitted.said()[-3_000:]
        ground.send_raw(1, *[GOOD] * 20, b"cut")
        eventually(lambda: submitted.has_all() or process.poll() is not None, within_s=120)
        assert submitted.is_locked()
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("python" in each.name() for each in children)

        process.send_signal(signal.SIGTERM)

        # Java ends itself so; its Python gives the locks back, and ends too.
        assert process.wait(60) == 128 + signal.SIGTERM
        assert psutil.wait_procs(children, 60)[1] == []
        assert not submitted.is_locked()
    finally:
        end(process)
    books(ground, is_bad=lambda value: value != GOOD).check()
    assert len(rows_of(ground.table)) == 120
    assert [row["partition"] for row in rows_of(ground.dead, 'SELECT "partition" FROM t ORDER BY 1')] == [0, 1]
    used = dict(line.split("=", 1) for line in submitted.said().splitlines() if line.startswith("spark."))
    assert used["spark.master"] == "local[2]"
    assert used["spark.scheduler.mode"] == "FIFO", "what spark-submit is given counts"
    assert used["spark.executor.extraJavaOptions"].endswith(" -Dgiven=yes")
    assert all(f"-D{name}={most} " in used["spark.executor.extraJavaOptions"] for name, most in AVRO_LIMITS.items())


def test_a_pipeline_that_is_not_there_is_said_before_spark_is_started(submitted: Submitted) -> None:
    process = submitted.start("order")
    try:
        assert process.wait(120) == 3
    finally:
        end(process)

    said = submitted.said()
    assert "error: there is no pipeline [lake.order]\nnext:  did you mean orders?" in said
    assert "Traceback" not in said
    assert "SparkContext" not in said


def test_jars_that_spark_submit_was_not_given_are_named_before_spark_is_started(submitted: Submitted) -> None:
    delta = [path for path in said_by("--jars").split(",") if "/delta-" in path]
    process = submitted.start("orders", "--jars", ",".join(delta))
    try:
        assert process.wait(120) == 1
    finally:
        end(process)

    said = submitted.said()
    assert "error: spark-submit was given no jars of Kafka and Avro\nnext:  name them by --packages, or --jars" in said
    assert "Traceback" not in said
    assert "SparkContext" not in said
    assert not submitted.is_locked()


def test_a_python_without_penstock_says_which_one_it_is(tmp_path: Path) -> None:
    here = tmp_path / "elsewhere" / "lake"
    here.mkdir(parents=True)
    copied = shutil.copy(Path(penstock.lake.__file__).parent / "__main__.py", here)

    done = subprocess.run(
        [sys.executable, "-S", str(copied), "orders"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {sys.executable} has no penstock",
        "next:  let PYSPARK_PYTHON name the Python in which penstock[lake] is installed",
    ]


def test_what_spark_submit_is_given_wins_but_delta_is_always_there() -> None:
    alone = beside_given({})
    delta = alone["spark.sql.extensions"]

    beside = beside_given(
        {
            "spark.sql.extensions": f"a.B,{delta},c.D",
            "spark.sql.catalog.spark_catalog": "another.Catalog",
            "spark.sql.session.timeZone": "Europe/Paris",
            "spark.something": "else",
        }
    )

    assert beside["spark.sql.extensions"] == f"a.B,c.D,{delta}"
    assert beside["spark.sql.catalog.spark_catalog"] == alone["spark.sql.catalog.spark_catalog"]
    assert set(alone) - set(beside) == {"spark.sql.session.timeZone"}
    assert "spark.something" not in beside


def test_small_tables_are_looked_at_in_few_parts_only_where_there_is_one_machine() -> None:
    parts = "spark.databricks.delta.snapshotPartitions"

    assert parts in beside_given({"spark.master": "local[2]"})
    assert parts not in beside_given({"spark.master": "local[2]", parts: "7"})
    assert parts not in beside_given({"spark.master": "yarn"})
