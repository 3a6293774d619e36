"""What the doctor says of the lake: each finding a sentence, and what to do."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from penstock.doctor.findings import Finding, Status
from penstock.doctor.lake import LakeSeen, Place, lake_findings, look_at_lake
from penstock.settings import LakeSettings, Settings

WELL = LakeSeen(settings=LakeSettings(), java="17.0.15", pyspark="4.0.4", delta="4.4.0", jars="/jars")


def found(seen: LakeSeen, name: str) -> Finding:
    (finding,) = [one for one in lake_findings(seen) if one.name == f"lake {name}"]
    return finding


def with_lake(seen: LakeSeen = WELL, **settings: Any) -> LakeSeen:
    return replace(seen, settings=LakeSettings(**settings))


def test_where_everything_fits_all_is_green() -> None:
    assert {one.status for one in lake_findings(WELL)} == {Status.GREEN}


@pytest.mark.parametrize(
    ("seen", "name", "what", "mend"),
    [
        (replace(WELL, pyspark=""), "spark", "Spark is not installed", "pip install 'penstock[lake]'"),
        (replace(WELL, pyspark="3.5.1"), "spark", "this is Spark 3.5.1, and our jars are for 4.0", "packages"),
        (replace(WELL, delta=""), "delta", "delta-spark is not installed", "pip install"),
        (replace(WELL, java_problem=("no Java 17", "set JAVA_HOME")), "java", "no Java 17", "set JAVA_HOME"),
        (replace(WELL, master_problem="spark://x:1 does not answer"), "master", "does not answer", "[lake] master"),
    ],
)
def test_what_keeps_a_run_from_starting_is_red(seen: LakeSeen, name: str, what: str, mend: str) -> None:
    finding = found(seen, name)

    assert finding.status is Status.RED
    assert what in finding.what
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("package", "what"),
    [
        ("org.apache.spark:spark-avro_2.12:4.0.4", "is for Scala 2.12"),
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", "is not for Spark 4.0.4"),
        ("io.delta:delta-spark_4.1_2.13:4.4.0", "is for Spark 4.1"),
        ("hadoop-aws", "is no coordinate"),
    ],
)
def test_a_package_of_another_line_is_red(package: str, what: str) -> None:
    finding = found(with_lake(packages=(package,)), f"package: {package}")

    assert finding.status is Status.RED
    assert what in finding.what


def test_another_line_of_spark_is_fine_with_jars_of_its_own() -> None:
    seen = with_lake(replace(WELL, pyspark="4.1.0"), packages=("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0",))

    assert {one.status for one in lake_findings(seen)} == {Status.GREEN}


@pytest.mark.parametrize(
    ("table", "settings", "status", "what"),
    [
        ("/lake/orders", {}, Status.GREEN, "one process at a time"),
        ("/lake/orders", {"master": "spark://host:7077"}, Status.YELLOW, "is on a disk, and Spark runs on spark://"),
        ("s3://bucket/orders", {}, Status.YELLOW, "no client is named"),
        (
            "s3a://bucket/orders",
            {"packages": ("org.apache.hadoop:hadoop-aws:3.4.1",)},
            Status.YELLOW,
            "with S3SingleDriverLogStore: safe as long as only Penstock writes",
        ),
        (
            "s3a://bucket/orders",
            {
                "packages": ("org.apache.hadoop:hadoop-aws:3.4.1",),
                "spark": {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"},
            },
            Status.GREEN,
            "with S3DynamoDBLogStore, a log store that is safe for several writers",
        ),
        ("abfss://box@account.example/orders", {}, Status.GREEN, "several writers"),
        ("gs://bucket/orders", {}, Status.YELLOW, "no connector"),
    ],
)
def test_where_a_table_lies_says_who_may_write(table: str, settings: Any, status: Status, what: str) -> None:
    seen = replace(with_lake(**settings), places=(Place(pipeline="orders", table=table),))

    finding = found(seen, f"table: {table}")

    assert finding.status is status
    assert what in finding.what
    assert finding.mend or status is Status.GREEN


def test_a_master_is_asked_whether_it_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}"
        assert look_at_lake(Settings(lake=LakeSettings(master=there))).master_problem == ""

    away = "spark://127.0.0.1:1"
    assert look_at_lake(Settings(lake=LakeSettings(master=away))).master_problem == f"{away} does not answer"


def test_pipelines_that_are_wrong_are_said_with_what_to_write() -> None:
    wrong = Settings(lake=LakeSettings(pipelines={"orders": {"app_id": "a", "topik": "x"}}))

    finding = found(look_at_lake(wrong), "pipelines")

    assert finding.status is Status.YELLOW
    assert "did you mean topic?" in finding.mend
