"""Ending Spark: the session, and the Java process that belongs to it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN_S = 10.0


def end_session(session: SparkSession, *, within_s: float = WITHIN_S) -> None:
    """Stop Spark; when this returns its Java is gone, unless it is spark-submit's own. Never raises."""
    java = java_process()
    with suppress(Exception):  # Java may be gone already: the signal that ends us may have reached it first
        session.stop()
    if java is not None:
        _end(java, within_s)


def java_process() -> subprocess.Popen[bytes] | None:
    """Spark's Java, if this process started it."""
    with suppress(ImportError):
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        return getattr(gateway, "proc", None)
    return None


def _end(java: subprocess.Popen[bytes], within_s: float) -> None:
    if java.stdin is not None:
        with suppress(OSError):
            java.stdin.close()  # it ends when nobody talks to it any more
    try:
        java.wait(within_s)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
