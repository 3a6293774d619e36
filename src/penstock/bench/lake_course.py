"""The lake over time: how long a message takes to be a row, how large files become, and how a killed driver returns."""

from __future__ import annotations

import bisect
import statistics
import time
from collections import defaultdict
from pathlib import Path

from penstock.bench.lake_driver import DriverProcess, configure
from penstock.bench.lake_ground import PARTITIONS, LakeGround, Told, actions, commits, order, pipeline_options, wait_for

PER_S = 100
ALLOWED_LATENCY = "2s"


def measure_latency(lake: LakeGround, *, seconds: int, told: Told) -> dict[str, float]:
    """From a message's timestamp to the commit of its row, at 100 messages/s and an allowed latency of 2 s."""
    told(f"latency, {seconds} s")
    topic = lake.ground.topic("latency", partitions=PARTITIONS)
    with lake.place("latency") as place:
        with lake.pipeline(topic, place, allowed_latency=ALLOWED_LATENCY) as pipeline:
            with lake.ground.fed(topic, partitions=PARTITIONS, per_s=PER_S, value=order(1)):
                wait_for(lambda: pipeline.progress.batches >= 3, "the third batch")
                began = time.time()
                time.sleep(seconds)
            last = lake.ground.last_offsets(topic, partitions=PARTITIONS)
            wait_for(lambda: all(pipeline.progress.stored.get(at, -1) >= last[at] for at in last), "the last batch")
        spans = sorted(landed - sent for sent, landed in _sent_and_landed(lake, place) if sent >= began)
    return {"latency_p50_s": _percentile(spans, 0.5), "latency_p99_s": _percentile(spans, 0.99)}


def measure_files(lake: LakeGround, topic: str, *, count: int, told: Told) -> dict[str, float]:
    """The median file of a backlog to `min_bytes_per_file`, which is such that there are several batches."""
    told("sizes of files")
    with lake.place("probe") as place:
        lake.pipeline(
            topic,
            place,
            ends_at_latest_offsets=True,
            max_messages_per_batch=count // 4,
            max_offsets_per_trigger=count // 4,
        ).run()
        bytes_per_row = sum(_file_sizes(place)) / count
    wanted = round(bytes_per_row * count / (4 * lake.session.sparkContext.defaultParallelism))
    with lake.place("files") as place:
        with lake.pipeline(topic, place, min_bytes_per_file=wanted, allowed_latency="5s") as pipeline:
            wait_for(lambda: pipeline.progress.rows >= count or not pipeline.is_running, "the end of the backlog")
        sizes = _file_sizes(place)
    return {"file_size_ratio": statistics.median(sizes) / wanted, "files": len(sizes)}


def measure_recovery(lake: LakeGround, *, runs: int, told: Told) -> dict[str, float]:
    """From `kill -9` of a driver, Python and Java, to the next commit of one that is started at once."""
    spans = []
    for number in range(runs):
        told(f"recovery, run {number + 1} of {runs}")
        spans.append(_recovered(lake, lake.fresh("recovery")))
    return {"recovery_s": statistics.median(spans)}


def _recovered(lake: LakeGround, name: str) -> float:
    topic = lake.ground.topic(name, partitions=PARTITIONS)
    with lake.place(name) as folder, lake.ground.fed(topic, partitions=PARTITIONS, per_s=PER_S, value=order(1)):
        pipeline = pipeline_options(topic, folder / "table", app_id=name, allowed_latency=ALLOWED_LATENCY)
        configure(folder, lake.ground.kafka, prefix=lake.ground.prefix, name=name, pipeline=pipeline)
        log = folder / "table" / "_delta_log"
        with DriverProcess(folder) as first:
            _wait_for_commits(first, log, 4)
            first.kill()
            killed, versions = time.time(), len(commits(log))
        with DriverProcess(folder) as second:
            _wait_for_commits(second, log, versions + 1)
        return commits(log)[versions].stat().st_mtime - killed


def _wait_for_commits(driver: DriverProcess, log: Path, count: int) -> None:
    wait_for(lambda: len(commits(log)) >= count or driver.has_ended, f"version {count - 1} of the driver's table")
    if driver.has_ended:
        raise ValueError(f"the driver ended: {driver.said()}")


def _sent_and_landed(lake: LakeGround, place: Path) -> list[tuple[float, float]]:
    """For every row, the time of its message and that of the commit that it came with."""
    from pyspark.sql import functions as F  # noqa: N812

    ends: defaultdict[int, list[int]] = defaultdict(list)
    times: defaultdict[int, list[float]] = defaultdict(list)
    for commit in commits(place / "_delta_log"):
        for action in actions(commit):
            if "txn" in action:
                partition = int(action["txn"]["appId"].rpartition("-")[2])
                ends[partition].append(action["txn"]["version"])
                times[partition].append(commit.stat().st_mtime)
    sent = (F.unix_micros("_timestamp") / 1_000_000).alias("sent")
    rows = lake.session.read.format("delta").load(str(place)).select("_partition", "_offset", sent).collect()
    return [(sent, times[number][bisect.bisect_left(ends[number], offset)]) for number, offset, sent in rows]


def _file_sizes(place: Path) -> list[int]:
    return [
        action["add"]["size"]
        for commit in commits(place / "_delta_log")
        for action in actions(commit)
        if "add" in action
    ]


def _percentile(spans: list[float], share: float) -> float:
    return spans[min(len(spans) - 1, int(len(spans) * share))]
