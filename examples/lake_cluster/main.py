"""The same pipeline on a Spark cluster, by `master` alone; here the cluster is a master and two workers on loopback."""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

import penstock
from penstock.broker.java import java_home_for_spark
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.lake import Pipeline
from penstock.lake.session import spark_session
from penstock.settings import KafkaSettings, LakeSettings, Settings

SPARK = Path(pyspark.__file__).parent
ON_LOOPBACK = {
    **os.environ,
    "JAVA_HOME": str(java_home_for_spark()),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(SPARK),
    "SPARK_DAEMON_MEMORY": "256m",
}
READY = {"master": "Starting Spark master at", "worker": "Successfully registered with master"}


@contextmanager
def running(role: str, folder: str, *arguments: str) -> Iterator[str]:
    """A daemon of Spark as a child; yields the line that says that it is ready."""
    log = Path(tempfile.mkstemp(prefix=role, suffix=".log", dir=folder)[1])
    command = [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{role}.{role.capitalize()}"]
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            stdout=output,
            stderr=output,
            env=ON_LOOPBACK,
        )
    try:
        yield ready_line(daemon, log, READY[role])
    finally:
        daemon.terminate()
        daemon.wait()


def ready_line(daemon: subprocess.Popen[bytes], log: Path, ready: str) -> str:
    while daemon.poll() is None:
        for line in log.read_text().splitlines():
            if ready in line:
                return line
        time.sleep(0.1)
    raise RuntimeError(log.read_text())


with ExitStack() as stack:
    kafka = stack.enter_context(penstock.broker.Embedded())
    lake = stack.enter_context(tempfile.TemporaryDirectory())
    said = stack.enter_context(running("master", lake, "--port", "0"))
    master = re.findall(r"spark://127\.0\.0\.1:\d+", said)[0]
    for number in (1, 2):
        place = ["--work-dir", f"{lake}/worker-{number}"]
        stack.enter_context(running("worker", lake, "--cores", "1", "--memory", "1g", master, *place))

    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap),
        lake=LakeSettings(
            master=master,
            driver_memory="1g",
            spark={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.cores.max": "2",
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.databricks.delta.snapshotPartitions": "2",
            },
        ),
    )
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="orders", partitions=4, config={}, reason="an example")])
    with Writer(settings.kafka) as writer:
        for order in range(1_000):
            writer.send("orders", order % 4, json.dumps({"id": order}).encode())

    options = {
        "app_id": "orders",
        "topic": "orders",
        "table": f"{lake}/orders",  # where driver and workers all reach it; on several machines s3a:// and the like
        "columns": "id BIGINT",
        "ends_at_latest_offsets": True,
    }
    pipeline = Pipeline(options, settings)
    pipeline.run()
    spark = spark_session(settings.lake)
    rows = spark.read.format("delta").load(f"{lake}/orders")
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is among them
    print(f"{pipeline.progress.rows} rows landed by {executors} executors, {rows.distinct().count()} of them distinct")
    spark.stop()
