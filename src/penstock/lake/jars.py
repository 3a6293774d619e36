"""The jars that Spark needs for Kafka, Avro and Delta beside its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.broker import jars


def lake_jars(*, progress: jars.Progress | None = None) -> tuple[Path, ...]:
    """The jars of our list: from the folder that `PENSTOCK_JARS` names, else from the user's cache, fetched once.

    Raises Unavailable or WrongChecksum.
    """
    wanted = jars.listed("lake")
    if folder := os.environ.get("PENSTOCK_JARS"):
        return jars.take_from(Path(folder).expanduser().absolute(), wanted)
    return jars.fetch(wanted, progress=progress)


def are_cached() -> bool:
    return jars.is_cached(jars.listed("lake"))


def replace_ours(packages: Sequence[str]) -> bool:
    """Whether packages that the user named are for another line of Spark: then none of our jars may be beside them."""
    return any(":delta-spark" in package or ":spark-sql-kafka" in package for package in packages)
