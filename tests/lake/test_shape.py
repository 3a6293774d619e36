"""What becomes of messages, on a real Spark: rows, or errors that say why. No broker: frames stand in for the topic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from lake_frames import AT, ddl, frame, options, rows_of
from pyspark.sql import Row, SparkSession

from penstock.errors import ConfigError
from penstock.lake.kafka_frame import KAFKA
from penstock.lake.shape import Shape

pytestmark = pytest.mark.spark


def shaped(
    spark: SparkSession, columns: str, *values: object, table: str | None = None, **given: object
) -> list[dict[str, Any]]:
    """Rows by offset; values that are no bytes are sent as JSON."""
    sent = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values]
    shape = Shape(
        options(**{"origin_columns": False, **given}), ddl(columns), table=ddl(table) if table is not None else None
    )
    return rows_of(shape, frame(spark, sent))


def test_fields_become_columns_and_every_row_says_where_it_came_from(spark: SparkSession) -> None:
    shape = Shape(options(), ddl("id BIGINT, customer STRUCT<name: STRING>"))
    (row,) = shape.shaped(frame(spark, [b'{"id": 7, "customer": {"name": "Ada"}, "unknown": 1}'])).collect()

    assert shape.columns.names == ["id", "customer", "_topic", "_partition", "_offset", "_timestamp"]
    assert (row.id, row.customer.name, row._topic, row._partition, row._offset) == (7, "Ada", "orders", 3, 0)
    assert row._timestamp == AT
    assert bytes(row["__value"]).startswith(b'{"id": 7')
    assert row["__error"] is None


# Each line: the column's type, the JSON of the field, and the value that lands; an error where it says so.
BAD = object()
FIELDS: list[tuple[str, str, object]] = [
    ("BIGINT", "1", 1),
    ("BIGINT", "null", None),
    ("BIGINT", "-0", 0),
    ("BIGINT", '"1"', BAD),
    ("BIGINT", "1.0", BAD),
    ("BIGINT", "1e2", BAD),
    ("BIGINT", "true", BAD),
    ("BIGINT", "{}", BAD),
    ("BIGINT", "9223372036854775807", 9223372036854775807),
    ("BIGINT", "9223372036854775808", BAD),
    ("INT", "2147483648", BAD),
    ("SMALLINT", "32768", BAD),
    ("TINYINT", "127", 127),
    ("TINYINT", "200", BAD),
    ("TINYINT", "-129", BAD),
    ("DOUBLE", "1", 1.0),
    ("DOUBLE", "1.5", 1.5),
    ("DOUBLE", "1e400", BAD),
    ("DOUBLE", '"NaN"', BAD),
    ("DOUBLE", '"Infinity"', BAD),
    ("DOUBLE", '"1.5"', BAD),
    ("FLOAT", "1.5", 1.5),
    ("FLOAT", "1e39", BAD),
    ("DECIMAL(10,2)", "123.456", Decimal("123.46")),
    ("DECIMAL(10,2)", '"1.5"', Decimal("1.50")),
    ("DECIMAL(10,2)", "123456789.01", BAD),
    ("DECIMAL(10,2)", '"x"', BAD),
    ("BOOLEAN", "true", True),
    ("BOOLEAN", '"true"', BAD),
    ("BOOLEAN", "1", BAD),
    ("STRING", '"x"', "x"),
    ("STRING", '""', ""),
    ("STRING", "5", "5"),
    ("STRING", '{"a": [1, 2]}', '{"a":[1,2]}'),
    ("BINARY", '"aGVsbG8="', bytearray(b"hello")),
    ("BINARY", '"%%%"', BAD),
    ("DATE", '"2026-01-31"', date(2026, 1, 31)),
    ("DATE", '"2026-02-30"', BAD),
    ("DATE", "20000", BAD),
    ("TIMESTAMP", '"2026-01-31T12:30:00Z"', datetime(2026, 1, 31, 12, 30)),
    ("TIMESTAMP", '"2026-01-31T13:30:00+01:00"', datetime(2026, 1, 31, 12, 30)),
    ("TIMESTAMP", '"2026-01-31 12:30:00"', datetime(2026, 1, 31, 12, 30)),
    ("TIMESTAMP", "1769862600", datetime(2026, 1, 31, 12, 30)),
    ("TIMESTAMP", "1769862600000", BAD),
    ("TIMESTAMP", '"soon"', BAD),
    ("TIMESTAMP", '"12:30"', BAD),
    ("TIMESTAMP", "1769862600.5", BAD),
    ("TIMESTAMP_NTZ", '"2026-01-31T12:30:00"', datetime(2026, 1, 31, 12, 30)),
    ("TIMESTAMP_NTZ", '"soon"', BAD),
    ("ARRAY<TIMESTAMP>", '["2026-01-31T12:30:00Z", "soon"]', BAD),
    ("ARRAY<INT>", "[1, null, 3]", [1, None, 3]),
    ("ARRAY<INT>", '[1, "x"]', BAD),
    ("ARRAY<INT>", "1", BAD),
    ("ARRAY<TINYINT>", "[1, 200]", BAD),
    ("ARRAY<DOUBLE>", "[1, 1e400]", BAD),
    ("MAP<STRING, INT>", '{"a": 1}', {"a": 1}),
    ("MAP<STRING, INT>", '{"a": "x"}', BAD),
    ("MAP<STRING, TINYINT>", '{"a": 200}', BAD),
    ("STRUCT<a: INT, b: TINYINT>", '{"a": 1}', {"a": 1, "b": None}),
    ("STRUCT<a: INT>", '{"a": "x"}', BAD),
    ("STRUCT<a: TINYINT>", '{"a": 200}', BAD),
    ("STRUCT<a: INT NOT NULL>", "{}", BAD),
    ("STRUCT<a: INT NOT NULL>", "null", None),
    ("ARRAY<STRUCT<a: TINYINT>>", '[{"a": 1}, {"a": 200}]', BAD),
]


def test_a_field_lands_as_its_type_or_its_message_is_bad(spark: SparkSession) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(FIELDS))
    values = [f'{{"c{number}": {text}}}'.encode() for number, (_, text, _) in enumerate(FIELDS)]

    rows = shaped(spark, columns, *values)

    wrong = []
    for number, (row, (kind, text, expected)) in enumerate(zip(rows, FIELDS, strict=True)):
        landed = BAD if row["__error"] else row[f"c{number}"]
        if landed != expected or (
            landed is BAD and f"c{number}" not in row["__error"] and "nested" not in row["__error"]
        ):
            wrong.append(f"{text} as {kind}: {row['__error'] or landed!r}")
    assert wrong == []


WHOLE: list[tuple[bytes | None, str | None]] = [
    (b'{"a": 1}', None),
    (b'  {"a": 1}\r\n', None),
    (b"{}", None),
    (b'{"a": 1, "a": 2}', None),
    (b'{"a": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}", None),
    (None, "the value is null"),
    (b"", "not one JSON object"),
    (b" ", "not one JSON object"),
    (b"null", "null instead of a JSON object"),
    (b"5", "not one JSON object"),
    (b'"x"', "not one JSON object"),
    (b'[{"a": 1}]', "not one JSON object"),
    (b"not JSON", "not one JSON object"),
    (b'{"a": 1', "not one JSON object"),
    (b'{"a": 1,}', "not one JSON object"),
    (b'{"a": 01}', "not one JSON object"),
    (b"{'a': 1}", "not one JSON object"),
    (b'{"a": NaN}', "not one JSON object"),
    (b'{"a": 1} x', "not one JSON object"),
    (b'{"a": 1}{"a": 2}', "not one JSON object"),
    (b'{"a": 1}, {"a": 2}', "more text after the JSON object"),
    (b'{"a": 1}]} x', "more text after the JSON object"),
    (b'{"a": 1}], "b": [{"a": 2}', "more text after the JSON object"),
    (b'{"a": 1}]', "not one JSON object"),
    (b'\xef\xbb\xbf{"a": 1}', "not one JSON object"),
    (b'{"b": "\xff\xfe"}', "the value is not UTF-8"),
    (b'{"b": "' + b"x" * 1_000_000 + b'"}', None),
    (b'{"b": "' + b"x" * 1_000_000, "not one JSON object"),
    (b"[" * 100_000, "not one JSON object"),
    (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not one JSON object"),
    (b'{"a": "x", "b": "kept"}', "wrong type, or out of bounds: a"),
    (b'{"a": "x", "c": "y", "b": 1}', "wrong type, or out of bounds: a, c"),
    (b'{"n": {"q": "x"}}', "wrong type, or out of bounds: a nested field"),
]


def test_a_message_that_is_not_one_json_object_is_bad_and_says_why(spark: SparkSession) -> None:
    rows = shaped(spark, "a INT, b STRING, c INT, n STRUCT<q: INT>", *(value for value, _ in WHOLE))

    found = [(value[:40] if value else value, row["__error"]) for (value, _), row in zip(WHOLE, rows, strict=True)]
    assert found == [(value[:40] if value else value, error) for value, error in WHOLE]
    assert rows[3]["a"] == 2, "of two fields of one name the last counts"
    assert len(rows[26]["b"]) == 1_000_000


def test_transforms_compute_columns_from_the_message_and_from_kafka(spark: SparkSession) -> None:
    shape = Shape(
        options(
            origin_columns=False,
            transforms={
                "date": "to_date(kafka.timestamp)",
                "total": "price * quantity",
                "customer.city": "customer.addresses[0].city",
                "customer.cities": "customer.addresses[*].city",
                "last_city": "customer.addresses[-1].city",
                "tenth": "customer.addresses[9].city",
                "trace": "kafka.headers.trace-id",
                "place.partition": "kafka.partition",
                "place.key": "kafka.key",
                "loud": "upper(kafka.headers['trace-id'])",
            },
            metadata={"service": "checkout", "place.version": 3},
        ),
        ddl("price DOUBLE, quantity INT, customer STRUCT<name: STRING, addresses: ARRAY<STRUCT<city: STRING>>>"),
    )
    message = {"price": 1.5, "quantity": 4, "customer": {"name": "Ada", "addresses": [{"city": "A"}, {"city": "B"}]}}
    good, bare = shape.shaped(frame(spark, [json.dumps(message).encode(), b"{}"], {"trace-id": b"t1"})).collect()

    assert (good.date, good.total, good.last_city, good.tenth) == (date(2026, 1, 31), 6.0, "B", None)
    assert (good.trace, good.loud, good.service) == ("t1", "T1", "checkout")
    assert good.place.asDict() == {"partition": 3, "key": "k", "version": 3}
    assert good.customer.asDict(recursive=True) == {
        "name": "Ada",
        "addresses": [{"city": "A"}, {"city": "B"}],
        "city": "A",
        "cities": ["A", "B"],
    }
    assert bare["__error"] is None, "what a message does not have is null, and what follows from it too"
    assert (bare.total, bare.date) == (None, date(2026, 1, 31))


def test_of_two_headers_of_one_name_the_last_counts(spark: SparkSession) -> None:
    shape = Shape(options(transforms={"t": "kafka.headers.t"}), ddl("a INT"))
    twice = [Row(key="t", value=bytearray(b"1")), Row(key="u", value=None), Row(key="t", value=bytearray(b"2"))]
    raw = spark.createDataFrame(
        [(None, bytearray(b"{}"), "orders", 0, 0, AT, 0, twice), (None, bytearray(b"{}"), "orders", 0, 1, AT, 0, None)],
        KAFKA,
    )

    assert [(row.t, row["__error"]) for row in shape.shaped(raw).collect()] == [("2", None), (None, None)]


def test_an_expression_that_fails_on_a_message_makes_it_bad_and_leaves_the_others(spark: SparkSession) -> None:
    rows = shaped(
        spark,
        "a STRING, list ARRAY<INT>, n INT",
        {"a": "1", "list": [1], "n": 1},
        {"a": "x", "list": [1], "n": 1},
        {"a": "1", "list": [], "n": 1},
        {"a": "1", "list": [1], "n": 2_000_000_000},
        transforms={"number": "cast(a AS INT)", "first": "list[cast(0 AS INT)]", "double": "n + n"},
    )

    assert [row["__error"] for row in rows] == [
        None,
        "transforms.number failed: cast(a AS INT)",
        "transforms.first failed: list[cast(0 AS INT)]",
        "transforms.double failed: n + n",
    ]


def test_a_filter_drops_messages_but_never_a_bad_one(spark: SparkSession) -> None:
    rows = shaped(
        spark,
        "kind STRING, n INT",
        {"kind": "order", "n": 1},
        {"kind": "other", "n": 2},
        {"n": 3},
        {"kind": "other", "n": "x"},
        b"not JSON",
        {"kind": "other", "n": None},
        filter="kind = 'order' AND 1 / n > 0",
    )

    assert [(row["n"], bool(row["__error"])) for row in rows] == [(1, False), (None, True), (None, True)]


def test_messages_go_to_the_table_whose_condition_they_meet(spark: SparkSession) -> None:
    routed = options(
        table="rest",
        origin_columns=False,
        route=[
            {"table": "orders", "condition": "kind = 'order'", "columns": "kind STRING, amount INT"},
            {"table": "refunds", "condition": "kind = 'refund'", "columns": "kind STRING, amount STRING"},
        ],
    )
    values = [
        b'{"kind": "order", "amount": 1}',
        b'{"kind": "refund", "amount": "one"}',
        b'{"kind": "order", "amount": "one"}',
        b'{"kind": "third"}',
        b'{"amount": "x"}',
        b'{"kind": 5, "amount": {}}',
        b"not JSON",
    ]
    taken = {}
    for landing in routed.landings():
        shape = Shape(landing, ddl(landing.columns or "kind STRING"))
        rows = shape.shaped(frame(spark, values)).collect()
        taken[landing.table.rsplit("/")[-1]] = {row["__offset"]: row["__error"] is None for row in rows}

    assert taken == {
        "orders": {0: True, 2: False, 4: False, 6: False},
        "refunds": {1: True, 6: False},
        "rest": {3: True, 4: True, 5: True, 6: False},
    }


@pytest.mark.parametrize(
    ("given", "objection"),
    [
        ({"transforms": {"x": "custmer.name"}}, "custmer"),
        ({"transforms": {"x": "customer.nam"}}, "did you mean name"),
        ({"transforms": {"x": "kafka.offzet"}}, "did you mean offset"),
        ({"transforms": {"x": "n[0]"}}, "is for lists"),
        ({"transforms": {"x": "1 +"}}, "transforms.x"),
        ({"transforms": {"x": "sum(n)"}}, "transforms.x"),
        ({"transforms": {"x": "row_number() OVER (ORDER BY n)"}}, "needs other messages"),
        ({"transforms": {"x": "explode(list)"}}, "transforms.x"),
        ({"transforms": {"n.x": "1"}}, "has no fields"),
        ({"transforms": {"x": "null"}}, "has no type"),
        ({"filter": "nn > 1"}, "filter"),
        ({"filter": "n + 1"}, "filter"),
    ],
)
def test_an_expression_that_cannot_work_is_refused_before_the_stream_starts(
    spark: SparkSession, given: Mapping[str, object], objection: str
) -> None:
    with pytest.raises(ConfigError, match=objection.replace("(", r"\(")) as refused:
        Shape(options(**given), ddl("n INT, list ARRAY<INT>, customer STRUCT<name: STRING>"))

    assert refused.value.next_step
    assert "\n" not in refused.value.what


def test_the_plan_reads_each_message_once_and_moves_no_rows(spark: SparkSession) -> None:
    shape = Shape(
        options(transforms={"double": "2 * n", "day": "to_date(kafka.timestamp)"}, filter="n > 1 AND double(n) < 9"),
        ddl("n INT, name STRING, at TIMESTAMP, small TINYINT, inner STRUCT<a: DOUBLE>"),
    )
    landed = shape.shaped(frame(spark, [b"{}"])).where("__error IS NULL").where("__offset > 5")
    plan = landed._jdf.queryExecution().executedPlan().toString()

    assert plan.count("from_json(") == 1, plan
    assert re.findall(r"\n +\+- (Project|Filter)", plan) == ["Project"], "all but the parser is generated code"
    assert "Exchange" not in plan
    assert "Python" not in plan
