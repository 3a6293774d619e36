"""What the lake needs of this machine, and whether its parts fit each other: one sentence each, with the next step."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

from penstock.broker.java import find_java, major
from penstock.broker.places import cache_folder
from penstock.doctor.findings import Finding, Status
from penstock.errors import PenstockError
from penstock.lake.configured import pipelines_of
from penstock.lake.jars import are_cached, replace_ours
from penstock.lake.locks import normalised
from penstock.settings import LakeSettings, Settings

SPARK_LINE, SCALA = "4.0", "2.13"
JAVAS = (17, 21)
ANSWER_S = 3.0
S3_STORE = "io.delta.storage.S3SingleDriverLogStore"
"""What Delta writes its log to S3 with, unless it is told otherwise."""

_INSTALL = "pip install 'penstock[lake]'"
_PACKAGE = re.compile(r"(?P<group>[^:]+):(?P<artifact>[^:]+):(?P<version>[^:]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of a pipeline."""

    pipeline: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSeen:
    """Everything that was looked at for the lake."""

    settings: LakeSettings
    java: str = ""
    java_problem: tuple[str, str] | None = None
    pyspark: str = ""
    delta: str = ""
    """The versions of the installed wheels; empty where one is missing."""
    jars: str = ""
    """Where our jars are, if they are here."""
    master_problem: str = ""
    places: tuple[Place, ...] = ()
    pipelines_problem: tuple[str, str] | None = None


def look_at_lake(settings: Settings) -> LakeSeen:
    """Look, and nothing else: no Spark is started, nothing downloaded."""
    java, java_problem = _java()
    places, problem = _places(settings.lake)
    return LakeSeen(
        settings=settings.lake,
        java=java,
        java_problem=java_problem,
        pyspark=_installed("pyspark"),
        delta=_installed("delta-spark"),
        jars=_jars(),
        master_problem=_master_problem(settings.lake.master),
        places=places,
        pipelines_problem=problem,
    )


def lake_findings(seen: LakeSeen) -> Iterator[Finding]:
    yield _java_finding(seen)
    yield _spark_finding(seen)
    yield _delta_finding(seen)
    yield _jars_finding(seen)
    yield from _package_findings(seen)
    yield _master_finding(seen)
    if seen.pipelines_problem is not None:
        yield _finding("pipelines", Status.YELLOW, *seen.pipelines_problem)
    yield from (_place_finding(place, seen.settings) for place in seen.places)


def _java_finding(seen: LakeSeen) -> Finding:
    if seen.java_problem is not None:
        return _finding("java", Status.RED, *seen.java_problem)
    if major(seen.java) not in JAVAS:
        return _finding(
            "java", Status.YELLOW, f"Java {seen.java}: Spark 4 is made for 17 and 21", "set JAVA_HOME to one of them"
        )
    return _finding("java", Status.GREEN, f"Java {seen.java}")


def _spark_finding(seen: LakeSeen) -> Finding:
    if not seen.pyspark:
        return _finding("spark", Status.RED, "Spark is not installed", _INSTALL)
    if not _is_of_line(seen.pyspark, SPARK_LINE) and not replace_ours(seen.settings.packages):
        return _finding(
            "spark",
            Status.RED,
            f"this is Spark {seen.pyspark}, and our jars are for {SPARK_LINE}",
            f"{_INSTALL}, or name the jars of your Spark's own line in [lake] packages",
        )
    return _finding("spark", Status.GREEN, f"Spark {seen.pyspark}")


def _delta_finding(seen: LakeSeen) -> Finding:
    if not seen.delta:
        return _finding("delta", Status.RED, "the wheel delta-spark is not installed", _INSTALL)
    return _finding("delta", Status.GREEN, f"delta-spark {seen.delta}")


def _jars_finding(seen: LakeSeen) -> Finding:
    if replace_ours(seen.settings.packages):
        return _finding("jars", Status.GREEN, "those of [lake] packages; Spark resolves them when it starts")
    if not seen.jars:
        return _finding(
            "jars",
            Status.YELLOW,
            "the jars for Kafka and Delta are not here yet",
            "penstock lake fetch (gets them once); PENSTOCK_MAVEN names a mirror, PENSTOCK_JARS a folder with them",
        )
    return _finding("jars", Status.GREEN, f"in {seen.jars}")


def _package_findings(seen: LakeSeen) -> Iterator[Finding]:
    """Jars of different lines miss each other's classes, often only after hours."""
    for package in seen.settings.packages:
        found = _PACKAGE.fullmatch(package)
        name = f"package: {package}"
        if found is None:
            yield _finding(name, Status.RED, "is no coordinate", 'write it as "group:artifact:version"')
            continue
        artifact, told = found["artifact"], found["version"]
        scala = re.search(r"_(2\.\d+)$", artifact)
        line = ".".join(seen.pyspark.split(".")[:2])
        if scala and scala[1] != SCALA:
            yield _finding(
                name, Status.RED, f"is for Scala {scala[1]}", f"Spark 4 is Scala {SCALA}: take its _{SCALA} form"
            )
        elif found["group"] == "org.apache.spark" and line and not _is_of_line(told, line):
            yield _finding(name, Status.RED, f"is not for Spark {seen.pyspark}", f"take version {seen.pyspark} of it")
        elif (of_line := re.search(r"delta-spark_(\d+\.\d+)_", artifact)) and line and of_line[1] != line:
            yield _finding(name, Status.RED, f"is for Spark {of_line[1]}", f"take delta-spark_{line}_{SCALA}")


def _master_finding(seen: LakeSeen) -> Finding:
    if seen.master_problem:
        return _finding("master", Status.RED, seen.master_problem, "start it, or correct [lake] master")
    return _finding("master", Status.GREEN, f"Spark runs on {seen.settings.master}")


def _place_finding(place: Place, settings: LakeSettings) -> Finding:
    name, table = f"table: {place.table}", normalised(place.table)
    scheme = table.partition("://")[0] if "://" in table else ""
    match scheme:
        case "" if not settings.master.startswith("local"):
            return _finding(
                name,
                Status.YELLOW,
                f"is on a disk, and Spark runs on {settings.master}",
                "it must be a disk that all its machines share, under the same path",
            )
        case "":
            return _finding(
                name, Status.GREEN, "on a disk: safe for one process at a time, which Penstock's locks see to"
            )
        case "s3a":
            return _s3_finding(name, settings)
        case "gs" if not any("gcs-connector" in package for package in settings.packages):
            return _finding(
                name,
                Status.YELLOW,
                "is on gs://, and no connector is named",
                "add com.google.cloud.bigdataoss:gcs-connector",
            )
    return _finding(name, Status.GREEN, f"on {scheme}://, where Delta's log store is safe for several writers")


def _s3_finding(name: str, settings: LakeSettings) -> Finding:
    if not any("hadoop-aws" in package for package in settings.packages):
        return _finding(
            name,
            Status.YELLOW,
            "is on S3, and no client is named",
            'add packages = ["org.apache.hadoop:hadoop-aws:3.4.1"]',
        )
    store = settings.spark.get("spark.delta.logStore.s3a.impl", S3_STORE).rpartition(".")[2]
    if "DynamoDB" in store:
        return _finding(name, Status.GREEN, f"on S3 with {store}, a log store that is safe for several writers")
    return _finding(
        name,
        Status.YELLOW,
        f"on S3 with {store}: safe as long as only Penstock writes, by its locks",
        "with other writers set spark.delta.logStore.s3a.impl = io.delta.storage.S3DynamoDBLogStore in [lake.spark]",
    )


def _java() -> tuple[str, tuple[str, str] | None]:
    try:
        return find_java().version, None
    except PenstockError as problem:
        return "", (problem.what, problem.next_step)


def _installed(wheel: str) -> str:
    try:
        return version(wheel)
    except PackageNotFoundError:
        return ""


def _jars() -> str:
    if folder := os.environ.get("PENSTOCK_JARS"):
        return folder
    return str(cache_folder() / "jars") if are_cached() else ""


def _places(lake: LakeSettings) -> tuple[tuple[Place, ...], tuple[str, str] | None]:
    try:
        pipelines = pipelines_of(lake)
    except PenstockError as problem:
        return (), (problem.what, problem.next_step)
    return tuple(Place(pipeline=one.name, table=each.table) for one in pipelines for each in one.landings()), None


def _master_problem(master: str) -> str:
    """What keeps Spark from running there, as far as it shows from here."""
    if master.startswith("local"):
        return ""
    if master == "yarn":
        is_known = any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))
        return "" if is_known else "master is yarn, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"
    address = urlsplit(master.removeprefix("k8s://") if master.startswith("k8s://") else master)
    # Several masters that stand in for each other are separated by commas; one is enough.
    for one in address.netloc.split(","):
        host, _, port = one.rpartition(":") if ":" in one else (one, "", "443")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S):
                return ""
        except (OSError, ValueError):
            continue
    return f"{master} does not answer"


def _is_of_line(version: str, line: str) -> bool:
    return version == line or version.startswith(f"{line}.")


def _finding(name: str, status: Status, what: str, mend: str = "") -> Finding:
    return Finding(name=f"lake {name}", status=status, what=what, mend=mend)
