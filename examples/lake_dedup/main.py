"""Messages that a producer sent twice are landed once, also when a restart lies between the two."""

import json
import tempfile

import penstock
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.lake import Pipeline
from penstock.lake.session import spark_session
from penstock.settings import KafkaSettings, LakeSettings, Settings

with penstock.broker.Embedded() as kafka, tempfile.TemporaryDirectory() as lake:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap), lake=LakeSettings(master="local[2]", driver_memory="1g")
    )
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="payments", partitions=2, config={}, reason="an example")])
    options = {
        "app_id": "payments",
        "topic": "payments",
        "table": f"{lake}/payments",
        "columns": "id STRING, cents BIGINT",
        "dedup": ["id"],
        "dedup_within": "10m",
        "ends_at_latest_offsets": True,
    }

    def send_and_land(numbers: range) -> int:
        with Writer(settings.kafka) as writer:
            for number in numbers:
                value = json.dumps({"id": f"payment-{number}", "cents": number}).encode()
                writer.send("payments", number % 2, value)
        pipeline = Pipeline(options, settings)
        pipeline.run()
        return pipeline.progress.rows

    print(f"100 sent, {send_and_land(range(100))} landed")
    print(f"100 sent, {send_and_land(range(50, 150))} landed: half of them came before the restart")
    rows = spark_session(settings.lake).read.format("delta").load(f"{lake}/payments")
    print(f"{rows.count()} rows, {rows.select('id').distinct().count()} different ids")
