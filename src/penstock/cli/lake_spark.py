"""Spark for a command of the lake: started late, ended with the command, and quiet."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = "the lake's jars"


@contextmanager
def late_spark(settings: Settings) -> Iterator[Callable[[], SparkSession]]:
    """A session, if somebody asks for one."""
    from penstock.lake.session_end import end_session

    made: list[SparkSession] = []

    def session() -> SparkSession:
        if not made:
            keep_stdout_from_java()
            made.append(started_session(settings, quiet=True))
        return made[0]

    try:
        yield session
    finally:
        for one in made:
            end_session(one)


@contextmanager
def spark(settings: Settings, *, quiet: bool) -> Iterator[SparkSession]:
    from penstock.lake.session_end import end_session

    keep_stdout_from_java()
    session = started_session(settings, quiet=quiet)
    try:
        yield session
    finally:
        end_session(session)


def started_session(settings: Settings, *, quiet: bool) -> SparkSession:
    from penstock.cli.broker import progress_shown
    from penstock.lake.session import spark_session

    with progress_shown(quiet=quiet, of=JARS) as progress:
        session = spark_session(settings.lake, progress=progress)
    _hush_spark()
    return session


def keep_stdout_from_java() -> None:
    """What Java prints goes to stderr: our stdout is data."""
    sys.stdout.flush()
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = os.fdopen(ours, "w", buffering=1)


def _hush_spark() -> None:
    """PySpark logs what it raises, too, with all of Java's stack; what it raises we say in a sentence."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
