"""Rows against the table that they go into: its types, its NOT NULL, fields that it does not have, and functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal

import pytest
from lake_frames import AT, ddl, frame, options, rows_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import ConfigError, Refused
from penstock.lake import learning
from penstock.lake.fitting import fitted, required
from penstock.lake.schemas import SCHEMA_PROPERTY, message_schema, properties_to_keep
from penstock.lake.shape import Shape

pytestmark = pytest.mark.spark

BAD = object()
# Each line: what the expression gives, the type of the table's column, and what lands.
FITS: list[tuple[str, str, object]] = [
    ("CAST(5 AS BIGINT)", "INT", 5),
    ("CAST(3000000000 AS BIGINT)", "INT", BAD),
    ("CAST(200 AS INT)", "TINYINT", BAD),
    ("CAST(2.0 AS DOUBLE)", "INT", 2),
    ("CAST(2.5 AS DOUBLE)", "INT", BAD),
    ("CAST('NaN' AS DOUBLE)", "INT", BAD),
    ("CAST(1.25 AS DECIMAL(10,2))", "DECIMAL(5,1)", Decimal("1.3")),
    ("CAST(12345678 AS DECIMAL(10,2))", "DECIMAL(5,1)", BAD),
    ("CAST(1e39 AS DOUBLE)", "FLOAT", BAD),
    ("CAST('Infinity' AS DOUBLE)", "DOUBLE", float("inf")),
    ("5", "STRING", "5"),
    ("named_struct('a', 1)", "STRING", '{"a":1}'),
    ("'7'", "INT", 7),
    ("'x'", "INT", BAD),
    ("'true'", "BOOLEAN", True),
    ("'2026-01-31'", "DATE", date(2026, 1, 31)),
    ("'soon'", "TIMESTAMP", BAD),
    ("kafka.timestamp", "DATE", date(2026, 1, 31)),
    ("'ab'", "BINARY", bytearray(b"ab")),
    ("array(1, 300)", "ARRAY<TINYINT>", BAD),
    ("array(1, 2)", "ARRAY<TINYINT>", [1, 2]),
    ("named_struct('a', 1, 'b', 2)", "STRUCT<b: BIGINT, c: STRING>", {"b": 2, "c": None}),
    ("named_struct('a', 1)", "STRUCT<a: INT, c: STRING NOT NULL>", BAD),
    ("map('a', 1)", "MAP<STRING, BIGINT>", {"a": 1}),
    ("map('a', 300)", "MAP<STRING, TINYINT>", BAD),
    ("CAST(null AS INT)", "INT NOT NULL", BAD),
]


def test_what_an_expression_gives_is_cast_to_the_tables_type_or_its_message_is_bad(spark: SparkSession) -> None:
    scope = spark.createDataFrame([(AT,)], "timestamp TIMESTAMP").select(F.struct("timestamp").alias("kafka"))
    sources = scope.select(*(F.expr(source).alias(f"c{number}") for number, (source, _, _) in enumerate(FITS)))
    columns = []
    for number, (_, kind, _) in enumerate(FITS):
        (wanted,) = ddl(f"wanted {kind}").fields
        fit = fitted(F.col(f"c{number}"), sources.schema[number].dataType, wanted.dataType, where="c")
        fit = fit if wanted.nullable else required(fit)
        columns += [
            fit.value.alias(f"v{number}"),
            (F.lit(False) if fit.misfit is None else fit.misfit).alias(f"m{number}"),
        ]
    row = sources.select(*columns).first().asDict(recursive=True)

    found = [BAD if row[f"m{number}"] else row[f"v{number}"] for number in range(len(FITS))]
    assert list(zip(FITS, found, strict=True)) == [(line, line[2]) for line in FITS]


def test_a_column_that_the_table_does_not_have_is_left_out_if_the_message_has_it_and_refused_if_it_was_asked_for(
    spark: SparkSession,
) -> None:
    table = ddl("ID BIGINT, other STRING")
    shape = Shape(options(origin_columns=False), ddl("id INT, extra STRING"), table=table)

    assert rows_of(shape, frame(spark, [b'{"id": 1, "extra": "x"}'])) == [{"ID": 1, "__offset": 0, "__error": None}]
    with pytest.raises(ConfigError, match="the table has no column for day, service"):
        Shape(
            options(origin_columns=False, transforms={"day": "kafka.timestamp"}, metadata={"service": "x"}),
            ddl("id INT"),
            table=table,
        )
    with pytest.raises(ConfigError, match="no column for _topic"):
        Shape(options(), ddl("id INT"), table=table)
    with pytest.raises(ConfigError, match="nothing fills needed"):
        Shape(options(origin_columns=False), ddl("id INT"), table=ddl("id INT, needed INT NOT NULL"))
    with pytest.raises(ConfigError, match="boolean does not go into it"):
        Shape(options(origin_columns=False), ddl("id BOOLEAN"), table=table)


def test_a_not_null_column_makes_messages_without_it_bad(spark: SparkSession) -> None:
    shape = Shape(options(origin_columns=False), ddl("id BIGINT NOT NULL, n STRUCT<q: INT NOT NULL>"))
    values = [b'{"id": 1}', b'{"n": {"q": 1}}', b'{"id": 1, "n": {}}', b'{"id": null}']

    assert [bool(row["__error"]) for row in rows_of(shape, frame(spark, values))] == [False, True, True, True]
    assert not shape.columns["id"].nullable


def test_rescue_keeps_what_is_unknown_as_json(spark: SparkSession) -> None:
    shape = Shape(options(origin_columns=False, schema="rescue"), ddl("id INT"))
    values = [
        b'{"id": 1}',
        b'{"id": 2, "a": 1.10, "b": {"c": [1, "x", null]}, "d": "5", "e": null, "ID": 9}',
        b"not JSON",
    ]
    plain, rich, bad = rows_of(shape, frame(spark, values))

    assert shape.columns.names == ["id", "_rescued"]
    assert plain["_rescued"] is None
    assert json.loads(rich["_rescued"]) == {"a": 1.1, "b": {"c": [1, "x", None]}, "d": "5", "e": None, "ID": 9}
    assert bad["__error"] == "not one JSON object"


def test_evolve_learns_new_fields_with_their_types_and_never_the_same_twice(spark: SparkSession) -> None:
    values = [
        b'{"id": 1}',
        b'{"id": 2, "name": "x", "n": null, "empty": [], "ID": 5, "bad name": 1, "_offset": 7, "__x": 1}',
        b'{"id": 3, "name": "y", "nested": {"a": 1}, "mixed": 1}',
        b'{"id": 4, "mixed": "z", "hollow": [[]]}',
        b"not JSON",
    ]
    kafka = frame(spark, values)
    first = Shape(options(schema="evolve"), ddl("id INT"))
    assert [row["__unlearned"] for row in rows_of(first, kafka)] == [False, True, True, True, False]

    second = first.learned(kafka)

    assert {field.name: field.dataType.simpleString() for field in second.schema.fields} == {
        "id": "int",
        "name": "string",
        "nested": "struct<a:bigint>",
        "mixed": "string",
        "hollow": "string",
    }
    rows = rows_of(second, kafka)
    assert [row["__unlearned"] for row in rows] == [False] * 5
    assert (rows[2]["nested"], rows[3]["mixed"], rows[1]["name"]) == ({"a": 1}, "z", "x")
    of_table = Shape(options(schema="evolve"), ddl("id INT"), table=first.columns)
    assert {field.name for field in of_table.learned(kafka).new_columns} == {"name", "nested", "mixed", "hollow"}
    again = Shape(options(schema="evolve"), ddl("id INT"), table=second.columns)
    assert again.new_columns == ()
    assert not any(row["__unlearned"] for row in rows_of(again, kafka)), "the table itself remembers what was learned"


def test_evolve_ends_where_there_is_no_end_of_new_fields(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "COLUMNS_MAX", 5)
    kafka = frame(spark, [json.dumps({f"f{number}": 1 for number in range(9)}).encode()])

    with pytest.raises(Refused, match="more than 5 different fields"):
        Shape(options(schema="evolve"), ddl("id INT")).learned(kafka)


def test_a_function_computes_columns_of_a_row(spark: SparkSession) -> None:
    def doubled(rows: DataFrame) -> DataFrame:
        return rows.withColumn("twice", F.col("n") * 2).withColumn("at", F.col("kafka.timestamp")).drop("n")

    shape = Shape(options(filter="n > 0"), ddl("n INT, s STRING"), transform=doubled)
    rows = rows_of(shape, frame(spark, [b'{"n": 2, "s": "x"}', b'{"n": -1}', b"not JSON"]))

    assert shape.columns.names == ["s", "_topic", "_partition", "_offset", "_timestamp", "twice", "at"]
    assert [(row["twice"], bool(row["__error"])) for row in rows] == [(4, False), (None, True)]


@pytest.mark.parametrize(
    ("function", "objection"),
    [
        (lambda rows: rows.groupBy("n").count(), "Aggregate"),
        (lambda rows: rows.where("n > 1"), "Filter"),
        (lambda rows: rows.dropDuplicates(["n"]), "Deduplicate"),
        (lambda rows: rows.select("*", F.explode(F.array(F.lit(1), F.lit(2)))), "Generate"),
        (lambda rows: rows.union(rows), "Union"),
        (lambda rows: rows.select("n"), "loses __topic"),
    ],
)
def test_a_function_that_does_more_than_compute_columns_is_refused(
    spark: SparkSession, function: Callable[[DataFrame], DataFrame], objection: str
) -> None:
    with pytest.raises(ConfigError, match=objection):
        Shape(options(), ddl("n INT"), transform=function)


def test_a_schema_is_inferred_once_from_a_sample_and_then_kept(spark: SparkSession) -> None:
    values = [b'{"id": 1, "name": "x"}', b'{"id": 2.5, "n": {"a": [1]}}', b"not JSON", None, b'{"_offset": 1}']
    options_ = options()

    schema = message_schema(options_, sample=lambda: frame(spark, values))

    assert schema.simpleString() == "struct<id:double,n:struct<a:array<bigint>>,name:string>"
    kept = properties_to_keep(options_, schema)
    assert message_schema(options_, sample=lambda: 1 / 0, properties=kept) == schema
    of_table = Shape(options_, schema).columns
    assert message_schema(options_, sample=lambda: 1 / 0, table=of_table) == schema
    assert properties_to_keep(options(columns="id INT"), schema) == {}
    assert SCHEMA_PROPERTY in kept
    with pytest.raises(ConfigError, match="says what columns there are"):
        message_schema(options_, sample=lambda: frame(spark, [b"[]", None]))


def test_a_schema_is_given_as_columns_or_as_a_file(spark: SparkSession, tmp_path) -> None:  # type: ignore[no-untyped-def]
    schema = ddl("id BIGINT NOT NULL, n STRUCT<a: INT>")
    (tmp_path / "spark.json").write_text(json.dumps(schema.jsonValue()))
    (tmp_path / "columns.sql").write_text("id BIGINT NOT NULL, n STRUCT<a: INT>\n")
    (tmp_path / "broken.json").write_text('{"type": "struct"}')

    def of(**given: object) -> object:
        return message_schema(options(**given), sample=lambda: 1 / 0)

    assert of(columns="id BIGINT NOT NULL, n STRUCT<a: INT>") == schema
    assert of(schema_file=tmp_path / "spark.json") == schema
    assert of(schema_file=str(tmp_path / "columns.sql")) == schema
    for given in (
        {"columns": "id BIGNT"},
        {"schema_file": tmp_path / "broken.json"},
        {"schema_file": tmp_path / "absent.json"},
    ):
        with pytest.raises(ConfigError) as refused:
            of(**given)
        assert refused.value.next_step
