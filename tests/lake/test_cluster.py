"""One pipeline on a Spark cluster: a master and two workers as processes, so that nothing may assume one process."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_faults import books, ends, next_offsets, send
from lake_ground import Ground
from lake_process import Driver
from real_kafka import eventually, settings_for

from penstock.broker.java import java_home_for_spark

if TYPE_CHECKING:
    from penstock.broker import Embedded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ON_LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


@contextmanager
def spark_process(log: Path, kind: str, *arguments: str) -> Iterator[None]:
    """A part of a cluster, as Spark's own script starts it, until the test is over."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home_for_spark()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(log.parent / "work"),
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        # A worker that is asked to end takes its executors along.
        process.terminate()
        process.wait(30)


def said(log: Path, pattern: str) -> re.Match[str] | None:
    return re.search(pattern, log.read_text()) if log.exists() else None


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    log, of_workers = tmp_path / "master.log", [tmp_path / f"worker-{number}.log" for number in range(2)]
    with ExitStack() as running:
        running.enter_context(spark_process(log, "master.Master", "--port", "0", "--webui-port", "0"))
        eventually(lambda: said(log, r"Starting Spark master at (spark://\S+)"), within_s=120)
        found = said(log, r"Starting Spark master at (spark://\S+)")
        assert found is not None
        for each in of_workers:
            running.enter_context(
                spark_process(
                    each, "worker.Worker", "--cores", "1", "--memory", "600m", "--webui-port", "0", found.group(1)
                )
            )
        eventually(lambda: log.read_text().count("Registering worker") == 2, within_s=120)
        yield found.group(1)


def test_a_pipeline_runs_on_a_cluster_without_other_code(
    penstock_broker: Embedded, master: str, tmp_path: Path
) -> None:
    kafka = settings_for(penstock_broker.bootstrap)
    ground = Ground(None, kafka, tmp_path)  # type: ignore[arg-type]
    ground.admin.grow(ground.topic, 4)
    send(ground, 200)
    driver = Driver(kafka, tmp_path / "driver.log", master=master, spark=ON_LOOPBACK)
    try:
        started = driver.start(
            ground.options(dead_letters=str(ground.dead), transforms={"double": "id + id"}, max_offsets_per_trigger=400)
        )
        assert started.get("is_running"), (started, (tmp_path / "driver.log").read_text()[-2_000:])
        eventually(lambda: next_offsets(ground) == ends(ground), within_s=300)
        send(ground, 10)
        eventually(lambda: next_offsets(ground) == ends(ground), within_s=120)
        state = driver.stop()
        assert (state["rows"], state["bad"], state.get("failure")) == (840, 2, None)
        books(ground).check()
        executors = {path.parent for path in (tmp_path / "work").glob("app-*/*/stderr")}
        assert len(executors) == 2, "one executor on each worker"
    finally:
        driver.end()
        ground.close()
