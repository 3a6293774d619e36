"""JSON to a Delta table: rows and offsets are one commit, so a lost checkpoint lands nothing twice."""

import json
import shutil
import tempfile
from pathlib import Path

import penstock
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.lake import Pipeline
from penstock.lake.session import spark_session
from penstock.settings import KafkaSettings, LakeSettings, Settings


def send(settings: Settings, numbers: range) -> None:
    with Writer(settings.kafka) as writer:
        for number in numbers:
            order = {"id": number, "item": "kettle", "at": "2031-05-01T08:00:00Z", "price": number / 4}
            writer.send("orders", number % 2, json.dumps(order).encode())


with penstock.broker.Embedded() as kafka, tempfile.TemporaryDirectory() as folder:
    table = Path(folder, "orders")
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap), lake=LakeSettings(master="local[2]", driver_memory="1g")
    )
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="orders", partitions=2, config={}, reason="an example")])
    options = {
        "app_id": "orders",
        "topic": "orders",
        "table": str(table),
        "columns": "id BIGINT NOT NULL, item STRING, at TIMESTAMP, price DECIMAL(10, 2)",
        "ends_at_latest_offsets": True,  # land what is there, and end; without it a pipeline runs until it is stopped
    }

    send(settings, range(1_000))
    first = Pipeline(options, settings)
    first.run()
    print(f"landed {first.progress.rows} orders, offsets {sorted(first.progress.stored.values())}")

    shutil.rmtree(table / "_checkpoints")  # what Spark knew of the stream; the table knows enough
    send(settings, range(1_000, 1_500))
    second = Pipeline(options, settings)
    second.run()
    print(f"landed {second.progress.rows} more, offsets {sorted(second.progress.stored.values())}")

    rows = spark_session(settings.lake).read.format("delta").load(str(table))
    print(f"{rows.count()} rows, {rows.select('_partition', '_offset').distinct().count()} of them distinct")
