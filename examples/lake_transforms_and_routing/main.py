"""One topic to several tables, with computed columns: Spark SQL over the message's fields and `kafka.*`."""

import json
import tempfile

import penstock
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.lake import Pipeline
from penstock.lake.session import spark_session
from penstock.settings import KafkaSettings, LakeSettings, Settings

EVENTS = [
    {"kind": "order", "id": 1, "cents": 2_050, "customer": {"name": "ann", "country": "se"}, "tags": ["new", "gift"]},
    {"kind": "return", "id": 1, "cents": 2_050, "customer": {"name": "ann", "country": "se"}, "tags": []},
    {"kind": "order", "id": 2, "cents": 0, "customer": {"name": "bob", "country": "de"}, "tags": ["test"]},
    {"kind": "order", "id": 3, "cents": 999, "customer": {"name": "cem", "country": "tr"}, "tags": []},
    {"kind": "login", "id": 4, "cents": 1, "customer": {"name": "dee", "country": "fr"}, "tags": []},
]

with penstock.broker.Embedded() as kafka, tempfile.TemporaryDirectory() as lake:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap), lake=LakeSettings(master="local[2]", driver_memory="1g")
    )
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="events", partitions=1, config={}, reason="an example")])
    with Writer(settings.kafka) as writer:
        for event in EVENTS:
            headers = [("trace", b"t-%d" % event["id"])]
            writer.send("events", 0, json.dumps(event).encode(), key=b"shop", headers=headers)

    Pipeline(
        {
            "app_id": "events",
            "topic": "events",
            "columns": "kind STRING, id BIGINT, cents BIGINT, customer STRUCT<name: STRING, country: STRING>, "
            "tags ARRAY<STRING>",
            "transforms": {
                "date": "to_date(kafka.timestamp)",
                "trace": "kafka.headers.trace",  # a path; so are "tags[0]" and "customer.name"
                "first_tag": "tags[0]",
                "customer.country": "upper(customer.country)",  # inside a struct
                "price": "CAST(cents / 100 AS DECIMAL(10, 2))",
            },
            "metadata": {"service": "checkout"},
            "filter": "cents > 0",
            "partition_by": ["date"],
            "table": f"{lake}/other",
            "route": [
                {"table": f"{lake}/orders", "condition": "kind = 'order'"},
                {
                    "table": f"{lake}/returns",
                    "condition": "kind = 'return'",
                    "transforms": {"taken_back_at": "kafka.timestamp"},
                    "partition_by": [],
                },
            ],
            "ends_at_latest_offsets": True,
        },
        settings,
    ).run()

    read = spark_session(settings.lake).read.format("delta")
    for row in read.load(f"{lake}/orders").orderBy("id").collect():
        print(
            f"order {row.id}: {row.price} from {row.customer.country}, tag {row.first_tag}, {row.trace}, {row.service}"
        )
    for name in ("returns", "other"):
        rows = read.load(f"{lake}/{name}").collect()
        print(f"{name}: {[row.kind + ' ' + str(row.id) for row in rows]}, date: {'date' in rows[0]}")
