"""Tables on an object store: Hadoop's client, an S3 server on the loopback, and a reader that knows neither."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from lake_faults import books, ends, next_offsets, send
from lake_ground import Ground
from lake_process import Driver
from lake_table import log_of, operations_of
from real_kafka import eventually, settings_for, unique
from s3_server import ENVIRONMENT, Bucket, s3_server
from test_cluster import ON_LOOPBACK, master  # noqa: F401 - a fixture

from penstock.broker.java import java_home_for_spark

if TYPE_CHECKING:
    from penstock.broker import Embedded

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1_800)]

PENSTOCK = Path(sys.executable).with_name("penstock")
# What Amazon's classes come in is 560 MB: the first time takes a while.
RESOLVED_WITHIN_S = 900


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hadoop's client for S3, of the Hadoop that Spark has, where it is to be had; then it is in Spark's cache."""
    import pyspark

    home = Path(pyspark.__file__).parent
    (hadoop,) = (home / "jars").glob("hadoop-client-api-*.jar")
    named = f"org.apache.hadoop:hadoop-aws:{hadoop.stem.removeprefix('hadoop-client-api-')}"
    nothing = tmp_path_factory.mktemp("resolving") / "nothing.py"
    nothing.touch()
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", named, str(nothing)]
    environment = {**os.environ, "JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RESOLVED_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{named} and what it needs were not here within {RESOLVED_WITHIN_S} s")
    if found := re.search(r"\[((unresolved dependency|download failed).*)]", done.stderr):
        pytest.skip(f"{named} does not resolve here: {found[1]}")
    assert done.returncode == 0, done.stderr[-3_000:]
    return named


class Cloud:
    """A ground whose tables are in a bucket. A copy of the bucket's bytes lies where the ground has its folders."""

    def __init__(self, kafka: Embedded, package: str, endpoint: str, folder: Path) -> None:
        self.ground = Ground(None, settings_for(kafka.bootstrap), folder)  # type: ignore[arg-type]
        self.bucket = Bucket(endpoint, unique("lake"))
        self.package, self.folder = package, folder
        self.environment = {**os.environ, **ENVIRONMENT}
        self.options = self.ground.options(table=self.place("table"), dead_letters=self.place("dead"))
        self._drivers: list[Driver] = []

    def place(self, path: str) -> str:
        return f"s3a://{self.bucket.name}/{path}"

    def driver(self, on: str = "local[2]", **more: str) -> Driver:
        spark = {**self.bucket.spark, **more, "spark.jars.packages": self.package}
        log = self.folder / f"driver-{len(self._drivers)}.log"
        self._drivers.append(Driver(self.ground.kafka, log, master=on, spark=spark))
        return self._drivers[-1]

    def configured(self, **options: object) -> None:
        """The same as a file, for the command line."""
        values = {**self.options, "min_bytes_per_file": 1_000_000, **options}
        del values["name"]
        sections = {
            "kafka": {"bootstrap_servers": self.ground.kafka.bootstrap_servers},
            "claims": {"topic": unique("claims"), "partitions": 1, "heartbeat": "3s"},
            "lake": {"master": "local[2]", "driver_memory": "1g", "packages": [self.package]},
            "lake.spark": self.bucket.spark,
            "lake.orders": values,
        }
        lines = [
            line
            for section, fields in sections.items()
            for line in (f"[{section}]", *(f'"{name}" = {json.dumps(value)}' for name, value in fields.items()))
        ]
        (self.folder / "penstock.toml").write_text("\n".join(lines))

    def said(self, *command: str) -> dict[str, Any]:
        """What `penstock COMMAND --json` prints."""
        done = subprocess.run(
            [str(PENSTOCK), *command, "--config", "penstock.toml", "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr[-3_000:])
        return {} if command[1] == "run" else dict(json.loads(done.stdout))

    def fetch(self) -> None:
        """Copy the tables as they are now to where the ground has its folders."""
        for prefix in ("table", "dead"):
            shutil.rmtree(self.folder / prefix, ignore_errors=True)
            self.bucket.copied(prefix, self.folder)

    def read(self, version: int | None = None) -> DeltaTable:
        """The table in the bucket, through the independent reader."""
        return DeltaTable(self.place("table"), version=version, storage_options=self.bucket.storage_options)

    def unknown_files(self) -> int:
        """Data files in the bucket that no version has, as of the last copy."""
        actions = [action for version in log_of(self.ground.table).values() for action in version]
        known = {f"table/{action['add']['path']}" for action in actions if "add" in action}
        keys = [key for key in self.bucket.objects("table") if key.endswith(".parquet") and key.count("/") == 1]
        return sum(key not in known for key in keys)

    def close(self) -> None:
        for driver in self._drivers:
            driver.end()
        self.bucket.close()
        self.ground.close()


@pytest.fixture
def cloud(penstock_broker: Embedded, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as open_ones:
        endpoint = open_ones.enter_context(s3_server(tmp_path / "s3.log"))
        made = Cloud(penstock_broker, package, endpoint, tmp_path)
        open_ones.callback(made.close)
        yield made


def landed(driver: Driver, rows: int) -> None:
    """Wait until this driver has landed so many rows, or has ended."""
    states: list[dict[str, Any]] = []

    def is_over() -> bool:
        states[:] = [driver.state()]
        return states[0].get("rows") == rows or not states[0].get("is_running")

    eventually(is_over, within_s=180)
    assert (states[0].get("rows"), states[0].get("failure")) == (rows, None), states


def places_in(table: DeltaTable) -> list[tuple[int, int]]:
    """Partition and offset of every row."""
    found = QueryBuilder().register("t", table).execute("SELECT _partition, _offset FROM t")
    return sorted((row["_partition"], row["_offset"]) for batch in found for row in batch.to_struct_array().to_pylist())


def test_a_driver_killed_behind_its_files_leaves_a_table_on_s3_that_the_next_one_completes(cloud: Cloud) -> None:
    ground = cloud.ground
    send(ground, 20)
    first = cloud.driver()
    assert first.start(cloud.options).get("is_running"), (cloud.folder / "driver-0.log").read_text()[-3_000:]
    landed(first, 40)
    cloud.fetch()
    had = next_offsets(ground)
    assert had == ends(ground)
    assert cloud.unknown_files() == 0

    first.die_at("lake.files_written", with_java=True)
    send(ground, 20)
    first.died()

    cloud.fetch()
    books(ground, is_whole=False).check()
    assert next_offsets(ground) == had
    assert cloud.unknown_files() > 0

    second = cloud.driver()
    assert second.start(cloud.options).get("is_running")
    landed(second, 40)
    send(ground, 20)
    landed(second, 80)
    state = second.stop()

    assert state.get("failure") is None
    cloud.fetch()
    found = books(ground)
    found.check()
    assert found.rows == 120
    assert any("/_checkpoints/" in key for key in cloud.bucket.objects("table"))
    read = cloud.read()
    rows = places_in(read)
    assert len(rows) == len(set(rows)) == 120
    stored = {partition: read.transaction_version(f"{ground.app_id}-{partition}") for partition in ends(ground)}
    assert stored == {partition: end - 1 for partition, end in ends(ground).items()}


def test_the_executors_of_a_cluster_are_given_the_client_too(cloud: Cloud, master: str) -> None:  # noqa: F811
    send(cloud.ground, 20)
    driver = cloud.driver(master, **ON_LOOPBACK)

    assert driver.start(cloud.options).get("is_running"), (cloud.folder / "driver-0.log").read_text()[-3_000:]
    landed(driver, 40)
    driver.stop()

    cloud.fetch()
    books(cloud.ground).check()
    assert len(places_in(cloud.read())) == 40


def test_the_commands_work_on_a_table_on_s3(cloud: Cloud) -> None:
    ground = cloud.ground
    cloud.configured(max_offsets_per_trigger=11)
    send(ground, 10)
    cloud.said("lake", "run", "orders", "--once")
    cloud.fetch()
    books(ground).check()
    newest = max(log_of(ground.table))
    assert newest >= 2
    everything, at_first = places_in(cloud.read()), places_in(cloud.read(version=1))
    assert 0 < len(at_first) < len(everything) == 20

    (told,) = cloud.said("lake", "status", "orders")["pipelines"]

    (table,), dead = told["tables"], told["dead_letters"]
    assert (table["table"], table["version"], table["rows"]) == (cloud.place("table"), newest, 20)
    assert table["committed_at"]
    assert (dead["rows"], told["lag_messages"], told["run_by"], told["problem"]) == (1, 0, None, "")
    assert {each["partition"]: each["next"] for each in told["partitions"]} == ends(ground)

    findings = {each["name"]: each for each in cloud.said("doctor", "--lake")["findings"]}

    finding = findings[f"lake table: {cloud.place('table')}"]
    assert finding["status"] == "yellow"
    assert "S3SingleDriverLogStore: safe as long as only Penstock writes" in finding["what"]

    maintained = {each["table"]: each for each in cloud.said("lake", "maintain", "orders")["tables"]}

    assert maintained[cloud.place("table")]["files_compacted"] >= 2
    assert places_in(cloud.read()) == everything

    rewound = cloud.said("lake", "rewind", "orders", "--to-version", "1", "--yes")

    cloud.fetch()
    assert rewound["version"] == max(log_of(ground.table))
    assert operations_of(ground.table)[-2:] == ["RESTORE", "STREAMING UPDATE"]
    assert not ground.checkpoint.exists()
    assert places_in(cloud.read()) == at_first

    cloud.said("lake", "run", "orders", "--once")

    assert places_in(cloud.read()) == everything
