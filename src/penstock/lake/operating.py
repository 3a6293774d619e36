"""What an operator does to tables while nobody lands in them: under the pipeline's locks, with a Spark of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from penstock.errors import NotAcquired
from penstock.lake.locks import Locks, locks_of
from penstock.lake.options import LakeOptions
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def alone_with(settings: Settings, *pipelines: LakeOptions, next_step: str) -> Iterator[None]:
    """Nobody lands in the tables of these pipelines while the block lasts. Raises Refused where somebody does."""
    locks = Locks(settings)
    with ExitStack() as held:
        for options in pipelines:
            try:
                held.enter_context(locks.held(locks_of(options)))
            except NotAcquired as refused:
                what = f"pipeline {options.name} is at work: {refused.what}"
                raise NotAcquired(what, next_step=next_step) from refused
        yield


def operating_session(session: SparkSession, properties: Mapping[str, str] | None = None) -> SparkSession:
    """The same Spark with settings of its own."""
    own = session.newSession()
    # What Delta does to a table has joins; with Spark's default of 200 parts the parts are most of the work.
    own.conf.set("spark.sql.shuffle.partitions", str(max(2, session.sparkContext.defaultParallelism)))
    for name, value in (properties or {}).items():
        own.conf.set(name, value)
    return own
