"""What batches cost that hold next to nothing: above Spark's own, on a table with a long log, and in memory."""

from __future__ import annotations

import json
import shutil
import statistics
from functools import partial
from pathlib import Path

from penstock.bench.lake_ground import LakeGround, Told, commits, wait_for
from penstock.bench.lake_sinks import Course, in_turns, through_penstock, through_spark
from penstock.bench.report import median_ratio
from penstock.lake.pipeline import Pipeline

PER_BATCH = 400


def measure_batches(lake: LakeGround, *, batches: int, versions: int, runs: int, told: Told) -> dict[str, float]:
    """The time of a small batch: next to Spark's own Delta sink, and on a table with many versions and files."""
    topic = lake.topic("small", (batches + 1) * PER_BATCH)
    with lake.place("few") as few, lake.place("many") as many:
        through_penstock(lake, topic, per_batch=PER_BATCH * batches, into=few)
        _lengthen(lake, few, 10)
        shutil.copytree(few, many)
        _lengthen(lake, many, versions)
        found = in_turns(
            {
                "few": partial(_into_copy, lake, topic, few),
                "delta": partial(through_spark, lake, topic, per_batch=PER_BATCH, form="delta"),
                "many": partial(_into_copy, lake, topic, many),
            },
            runs,
            told=lambda run: told(f"small batches, {run}"),
        )
    ours_ms, spark_ms = _median_ms(found["few"]), _median_ms(found["delta"])
    return {
        "batch_overhead_ms": ours_ms - spark_ms,
        "batch_ms": ours_ms,
        "spark_batch_ms": spark_ms,
        "versions_cost": median_ratio(
            [each.seconds for each in found["many"]], [each.seconds for each in found["few"]]
        ),
    }


def measure_memory(lake: LakeGround, *, batches: int, told: Told) -> dict[str, float]:
    """The heap after a collection: in the last quarter of the batches to the second one."""
    told(f"memory, {batches} batches")
    topic = lake.topic("memory", batches * PER_BATCH)
    heap_mb: dict[int, float] = {}
    with lake.place("memory") as place:
        pipeline = lake.pipeline(
            topic,
            place,
            ends_at_latest_offsets=True,
            max_messages_per_batch=PER_BATCH,
            max_offsets_per_trigger=PER_BATCH,
        ).start()
        try:
            for number in range(batches // 4, batches, max(1, batches // 40)):
                _wait_for_batch(pipeline, number)
                heap_mb[number] = lake.heap_mb()
        finally:
            pipeline.stop()
    if pipeline.failure is not None:
        raise pipeline.failure
    early = [mb for number, mb in heap_mb.items() if number < batches // 2]
    late = [mb for number, mb in heap_mb.items() if number >= batches * 3 // 4]
    return {
        "memory_growth": statistics.median(late) / statistics.median(early),
        "heap_mb": statistics.median(late),
    }


def _wait_for_batch(pipeline: Pipeline, number: int) -> None:
    wait_for(lambda: pipeline.progress.batches >= number or not pipeline.is_running, f"batch {number}")


def _into_copy(lake: LakeGround, topic: str, table: Path) -> Course:
    with lake.place("copy") as copy:
        shutil.copytree(table, copy, ignore=shutil.ignore_patterns("_checkpoints"))
        return through_penstock(lake, topic, per_batch=PER_BATCH, into=copy)


def _lengthen(lake: LakeGround, table: Path, versions: int) -> None:
    """Give the table so many versions, and about as many files; the last version has what makes Delta sum them up."""
    newest = commits(table / "_delta_log")[-1]
    already = int(newest.stem)
    info = next(line for line in newest.read_text("utf-8").splitlines() if line.startswith('{"commitInfo"'))
    for version in range(already + 1, versions):
        moved = json.dumps({"txn": {"appId": "former-0", "version": version, "lastUpdated": 0}}, separators=(",", ":"))
        (table / "_delta_log" / f"{version:020}.json").write_text(f"{info}\n{moved}\n", "utf-8")
    rows = lake.session.read.format("delta").load(str(table)).limit(versions).coalesce(1)
    rows.write.format("delta").mode("append").option("maxRecordsPerFile", 1).save(str(table))


def _median_ms(courses: list[Course]) -> float:
    return statistics.median(span for each in courses for span in each.spans_s) * 1_000
