"""Bad messages go to a table of their own, exactly once, and the stream goes on; mended, they are landed after all."""

import tempfile

import penstock
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.lake import LakeOptions, Pipeline
from penstock.lake.replay_dead import replay_dead
from penstock.lake.session import spark_session
from penstock.settings import KafkaSettings, LakeSettings, Settings

VALUES = [
    b'{"id": 1, "size": 3}',
    b'{"id": "one"}',
    b'{"id": 2, "size": 4} and more',
    b"not JSON",
    b'{"id": 3, "size": 99999999999}',
    b"\xff\xfe",
    b'{"size": 1}',
    b'{"id": 4, "size": 5}',
]

with penstock.broker.Embedded() as kafka, tempfile.TemporaryDirectory() as lake:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap), lake=LakeSettings(master="local[2]", driver_memory="1g")
    )
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="orders", partitions=1, config={}, reason="an example")])
    with Writer(settings.kafka) as writer:
        for value in VALUES:
            writer.send("orders", 0, value)

    options = {
        "app_id": "orders",
        "topic": "orders",
        "table": f"{lake}/orders",
        "dead_letters": f"{lake}/orders-dead",
        "columns": "id BIGINT NOT NULL, size INT",
        "ends_at_latest_offsets": True,
    }
    pipeline = Pipeline(options, settings)
    pipeline.run()
    print(f"landed {pipeline.progress.rows}, put aside {pipeline.progress.bad}")

    session = spark_session(settings.lake)
    for letter in session.read.format("delta").load(f"{lake}/orders-dead").orderBy("offset").collect():
        print(f"offset {letter.offset}: {letter.error}")

    # The producer says that sizes may be large. The table's column is made wider, and the letters are tried again.
    session.sql(f"ALTER TABLE delta.`{lake}/orders` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    session.sql(f"ALTER TABLE delta.`{lake}/orders` ALTER COLUMN size TYPE BIGINT")
    mended = LakeOptions.read("orders", {**options, "columns": "id BIGINT NOT NULL, size BIGINT"})
    replayed = replay_dead(session, settings, mended)
    rows = session.read.format("delta").load(f"{lake}/orders").orderBy("id").collect()
    print(f"replayed {replayed.rows}, still bad {replayed.still_bad}: {[(row.id, row.size) for row in rows]}")
