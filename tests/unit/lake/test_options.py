"""The options of a pipeline: read from a table, wherever it came from, or refused with what to write instead."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.lake.option_forms import StartingOffsets, Topics
from penstock.lake.options import LakeOptions
from penstock.values import duration

LEAST: Mapping[str, object] = {"app_id": "orders", "topic": "orders", "table": "/lake/orders"}


def read(**given: object) -> LakeOptions:
    return LakeOptions.read("orders", {**LEAST, **given})


def test_three_options_are_enough_and_the_rest_are_as_users_of_kafka_delta_ingest_know_them() -> None:
    options = read()

    assert (options.allowed_latency, options.max_messages_per_batch) == (duration("300s"), 5_000)
    assert options.min_bytes_per_file == 134_217_728
    assert (options.group, options.format, options.schema, options.compression) == ("orders", "json", "fixed", "snappy")
    assert options.on_bad_messages == "fail", "without a table for them, a bad message stops the pipeline"
    assert options.checkpoint_place == "/lake/orders/_checkpoints/orders"


EVERYTHING = """
app_id = "orders"
topic = ["orders", "returns"]
table = "lake/orders"
allowed_latency = 10
max_messages_per_batch = 100
max_offsets_per_trigger = 1_000
min_bytes_per_file = 1_000_000
consumer_group = "lag"
compression = "zstd"
starting_offsets = { "0" = 123, "1" = -1 }
ends_at_latest_offsets = true
format = "json"
payload = "gzip"
payload_bytes_max = 1_000
columns = "id BIGINT"
schema = "evolve"
infer_messages_max = 10
registry = "http://127.0.0.1:8081"
registry_subject = "s"
registry_user = "u"
registry_password = "p"
registry_timeout = "1s"
transforms.date = "to_date(kafka.timestamp)"
transforms.address.city = "upper(city)"
metadata = { service = "checkout", version = 3 }
filter = "id > 0"
origin_columns = false
dead_letters = "lake/dead"
bad_messages = "quarantine"
dedup = "id"
dedup_within = "1h"
partition_by = ["date"]
statistics = ["id", "date"]
table_properties = { "delta.appendOnly" = true }
checkpoint_every = 100
checkpoint = "s3a://bucket/checkpoints"
maintenance = "1h"
vacuum_after = "30d"
consumer = { "max.poll.records" = 1000 }
[[route]]
table = "lake/other"
condition = "kind = 'other'"
"""


def test_every_option_can_be_written_in_toml(tmp_path: Path) -> None:
    table = tomllib.loads(EVERYTHING)
    unwritten = {field.name for field in fields(LakeOptions)} - set(table)

    options = LakeOptions.read("orders", table, folder=tmp_path)

    assert unwritten == {"name", "condition", "schema_file", "cluster_by"}
    assert options.topic == Topics(("orders", "returns"))
    assert options.allowed_latency == duration("10s")
    assert options.starting_offsets == StartingOffsets("offsets", offsets={"": {0: 123, 1: -1}})
    assert options.transforms == {"date": "to_date(kafka.timestamp)", "address.city": "upper(city)"}
    assert options.table_properties == {"delta.appendOnly": "true"}
    assert options.dedup == ("id",)
    assert options.table == str(tmp_path / "lake/orders"), "places count from the file's folder"
    assert options.checkpoint_place == "s3a://bucket/checkpoints"
    assert "'p'" not in repr(options)


def test_options_from_the_environment_are_text() -> None:
    options = read(
        max_messages_per_batch="10", transforms='{"a": "b"}', starting_offsets='{"0": 5}', ends_at_latest_offsets="true"
    )

    assert (options.max_messages_per_batch, options.transforms) == (10, {"a": "b"})
    assert options.starting_offsets.offsets == {"": {0: 5}}
    assert options.ends_at_latest_offsets


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        ("orders.eu_1-x", Topics(("orders.eu_1-x",))),
        (["a", "b", "a"], Topics(("a", "b"))),
        ("orders-.*", Topics(pattern="orders-.*")),
        (["orders|returns"], Topics(pattern="orders|returns")),
    ],
)
def test_a_topic_is_a_name_a_list_or_a_pattern(given: object, topics: Topics) -> None:
    assert read(topic=given).topic == topics


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("earliest", StartingOffsets()),
        ("latest", StartingOffsets("latest")),
        ("2026-01-31T12:00:00Z", StartingOffsets("timestamp", timestamp_ms=1_769_860_800_000)),
        ("2026-01-31T13:00:00+01:00", StartingOffsets("timestamp", timestamp_ms=1_769_860_800_000)),
        (datetime(2026, 1, 31, 12), StartingOffsets("timestamp", timestamp_ms=1_769_860_800_000)),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), StartingOffsets("timestamp", timestamp_ms=1_769_860_800_000)),
        ({"orders": {"0": 1}}, StartingOffsets("offsets", offsets={"orders": {0: 1}})),
        ({0: 1}, StartingOffsets("offsets", offsets={"": {0: 1}})),
    ],
)
def test_starting_offsets_are_words_a_time_or_numbers(given: object, where: StartingOffsets) -> None:
    options = read(starting_offsets=given)

    assert options.starting_offsets == where
    assert str(options.starting_offsets)


@pytest.mark.parametrize(
    ("given", "says", "next_step"),
    [
        ({"topik": "x"}, "lake.orders.topik is no option", "did you mean topic?"),
        ({"min_byte_per_file": 1}, "min_byte_per_file is no option", "did you mean min_bytes_per_file?"),
        ({"nothing like it at all": 1}, "is no option", "known here: allowed_latency"),
        ({"condition": "x"}, "lake.orders.condition is no option", ""),
        ({"app_id": None}, "lake.orders has no app_id", 'app_id = "orders"'),
        ({"topic": None}, "has no topic", 'topic = "orders"'),
        ({"table": None}, "has no table", 'table = "lake/orders"'),
        ({"app_id": "a b"}, "app_id name 'a b' is not allowed", "a-z"),
        ({"consumer_group": "a b"}, "consumer_group name 'a b' is not allowed", "a-z"),
        ({"topic": []}, "topic: []", "one pattern"),
        ({"topic": ["a", "b-.*"]}, "topic: ['a', 'b-.*']", "one pattern"),
        ({"topic": "a(["}, "topic: 'a(['", "one pattern"),
        ({"allowed_latency": "soon"}, "allowed_latency: 'soon'", "a duration"),
        ({"allowed_latency": 0}, "allowed_latency 0ms is out of bounds", "use 100ms to 1w"),
        ({"max_messages_per_batch": 0}, "max_messages_per_batch 0 is out of bounds", "use 1 to"),
        ({"max_messages_per_batch": 1.5}, "max_messages_per_batch: 1.5", "a whole number"),
        ({"max_offsets_per_trigger": 10}, "is below max_messages_per_batch 5000", "smaller"),
        ({"min_bytes_per_file": -1}, "min_bytes_per_file -1 is out of bounds", "use"),
        ({"payload_bytes_max": 0}, "payload_bytes_max 0 is out of bounds", "use"),
        ({"compression": "rar"}, "compression: 'rar'", "one of snappy"),
        ({"format": "xml"}, "format: 'xml'", "one of json"),
        ({"payload": "rar"}, "payload: 'rar'", "one of plain"),
        ({"schema": "loose"}, "schema: 'loose'", "one of fixed"),
        ({"starting_offsets": "yesterday"}, "starting_offsets: 'yesterday'", '"earliest"'),
        ({"starting_offsets": 5}, "starting_offsets: 5", '"earliest"'),
        ({"starting_offsets": {"0": -3}}, "starting_offsets: {'0': -3}", '"earliest"'),
        ({"starting_offsets": {"x": 3}}, "starting_offsets: {'x': 3}", '"earliest"'),
        ({"transforms": "date"}, "transforms: 'date'", "a table of texts"),
        ({"transforms": {"a": 1}}, "transforms: {'a': 1}", "a table of texts"),
        ({"transforms": {"a": " "}}, "transforms: {'a': ' '}", "a table of texts"),
        ({"transforms": {"_offset": "1"}}, "_offset is a name that Penstock uses", "another"),
        ({"transforms": {"__x": "1"}}, "__x is a name that Penstock uses", "another"),
        ({"transforms": {"a": "1"}, "metadata": {"a": 1}}, "a is in transforms and in metadata", "one of them"),
        ({"metadata": {"a": [1]}}, "metadata: {'a': [1]}", "constants"),
        ({"bad_messages": "quarantine"}, "there is no table for them", 'dead_letters = "/lake/orders-dead"'),
        ({"dead_letters": "/lake/orders"}, "dead_letters is the table itself", "another place"),
        ({"format": "avro"}, "format avro needs a schema", "schema_file"),
        ({"format": "avro_single_object"}, "needs a schema", "schema_file"),
        ({"format": "avro_container"}, "needs a schema", "schema_file"),
        ({"format": "avro_registry"}, "needs a registry", "registry ="),
        ({"format": "json_registry"}, "needs a registry", "registry ="),
        ({"format": "avro_registry", "registry": "http://r", "topic": "a.*"}, "nothing says what columns", "subject"),
        ({"format": "avro", "schema_file": "x", "schema": "evolve"}, "schema evolve is for JSON", "fixed"),
        ({"format": "avro_registry", "registry": "http://r", "columns": "a INT"}, "columns do not describe", "avsc"),
        ({"format": "text", "columns": "a INT"}, "has the one field `value`", "transforms"),
        ({"registry": "host:8081"}, "registry 'host:8081' is no address", "http://"),
        ({"registry": "http://u:p@host"}, "has a user name in it", "registry_user"),
        ({"columns": "a INT", "schema_file": "x"}, "both say what a message is", "one of them"),
        ({"partition_by": ["a"], "cluster_by": ["b"]}, "either partitioned or clustered", "partition_by"),
        (
            {"table_properties": {"delta.setTransactionRetentionDuration": "1 day"}},
            "forget its offsets",
            "leave it out",
        ),
        ({"checkpoint_every": 0}, "checkpoint_every 0 is out of bounds", "use 1"),
        ({"dedup_within": 0}, "dedup_within 0ms is out of bounds", "use 1s"),
        ({"route": []}, "route: []", "a list of tables"),
        ({"route": [{"condition": "a"}]}, "route[0] has no table", "table ="),
        ({"route": [{"table": "x"}]}, "route[0] has no condition", "condition ="),
        ({"route": [{"table": "x", "condition": "a", "topic": "y"}]}, "route[0].topic is no option", "known here"),
        ({"route": [{"table": "x", "condition": "a", "colums": "y"}]}, "route[0].colums", "did you mean columns?"),
    ],
)
def test_a_mistake_is_named_with_what_to_write_instead(given: dict[str, object], says: str, next_step: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**given)

    assert says in refused.value.what
    assert next_step in refused.value.next_step
    assert refused.value.next_step


def test_a_secret_does_not_show_in_an_objection() -> None:
    from penstock.settings import Secret

    with pytest.raises(ConfigError) as refused:
        read(registry_timeout=Secret("hunter2"))

    assert "hunter2" not in str(refused.value)


def test_routes_are_the_same_pipeline_once_per_table() -> None:
    options = read(
        transforms={"a": "1"},
        filter="x > 0",
        route=[
            {"table": "/lake/eu", "condition": "region = 'eu'"},
            {"table": "/lake/us", "condition": "region = 'us'", "transforms": {"b": "2"}, "columns": "b INT"},
        ],
    )

    eu, us, rest = options.landings()

    assert (eu.table, us.table, rest.table) == ("/lake/eu", "/lake/us", "/lake/orders")
    assert (eu.transforms, us.transforms) == ({"a": "1"}, {"b": "2"})
    assert (eu.filter, us.columns, eu.route) == ("x > 0", "b INT", ())
    assert rest.condition == "NOT (coalesce((region = 'eu'), false) OR coalesce((region = 'us'), false))"
    assert eu.landings() == (eu,)
    assert [one.table for one in read(table=None, route=[{"table": "/a", "condition": "x"}]).landings()] == ["/a"]
