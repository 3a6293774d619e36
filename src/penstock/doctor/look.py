"""Looking, and nothing else: no topic is made, no record written, nothing downloaded."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.broker import jars
from penstock.broker.java import find_java
from penstock.broker.places import cache_folder
from penstock.broker.running import default_data, running_on
from penstock.claims.placement import coordination_topic, genesis
from penstock.doctor.clocks import log_clock
from penstock.doctor.findings import Disk, Founded, LedgerClock, Seen, furthest
from penstock.doctor.genesis import founded
from penstock.errors import NotFound, PenstockError, TransientError
from penstock.kafka.topics import Admin, TopicInfo, TopicSpec
from penstock.ledger.kafka_log import KafkaLog
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.topics import SNAPSHOTS_SUFFIX, ledger_topics
from penstock.queue.look import candidates
from penstock.settings import KafkaSettings, Settings
from penstock.topics import ledgers, needed
from penstock.values import duration

# Whoever asks a doctor does not want to wait as long as a service may.
ANSWER_TIMEOUT = duration("10s")
# The first question of a fresh client may be lost while it connects, and is asked again after 3 s.
READ_TIMEOUT = duration("5s")
LEDGERS_TIMEOUT_S = 20
TOO_LONG = f"it is too long to be read in {LEDGERS_TIMEOUT_S} s"
AGAIN_AFTER_S = 0.2


def with_running_broker(settings: Settings) -> Settings:
    """Where no broker is named, name the embedded one that `penstock broker start` left running, if it did."""
    if settings.kafka.bootstrap_servers:
        return settings
    running = running_on(settings.broker.data or default_data())
    bootstrap = running.bootstrap if running else ""
    return replace(settings, kafka=replace(settings.kafka, bootstrap_servers=bootstrap))


def look(settings: Settings) -> Seen:
    """See this machine and, if one is named, the broker."""
    return Seen(
        python=sys.version_info[:3],
        disks=tuple(_disks(settings)),
        now_ms=time.time_ns() // 1_000_000,
        **_java(),
        **_jars(),
        **_kafka(settings),
    )


def _java() -> dict[str, Any]:
    try:
        java = find_java()
    except PenstockError as problem:
        return {"java_problem": (problem.what, problem.next_step)}
    return {"java": f"Java {java.version} ({java.origin}: {java.executable})"}


def _jars() -> dict[str, Any]:
    for variable in ("PENSTOCK_JARS", "KAFKA_HOME"):
        if given := os.environ.get(variable):
            return {"jars": f"{variable} names {given}"}
    kafka = jars.listed("kafka")
    if jars.is_cached(kafka):
        return {"jars": f"{len(kafka)} jars in {cache_folder() / 'jars'}"}
    return {"jars_problem": ("the jars of Apache Kafka are not here yet", "penstock broker start (fetches them once)")}


def _disks(settings: Settings) -> Iterable[Disk]:
    places = {"cache": cache_folder(), "broker data": settings.broker.data or default_data()}
    for use, path in places.items():
        there = _existing(path)
        yield Disk(use, there, shutil.disk_usage(there).free)


def _existing(path: Path) -> Path:
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def _kafka(settings: Settings) -> dict[str, Any]:
    named: dict[str, Any] = {"bootstrap_servers": settings.kafka.bootstrap_servers, "specs": needed(settings)}
    if not settings.kafka.bootstrap_servers:
        return named
    timeout = min(settings.kafka.request_timeout, ANSWER_TIMEOUT)
    deadline = time.monotonic() + timeout.seconds
    while True:
        try:
            return named | _asked(settings, replace(settings.kafka, request_timeout=timeout))
        except TransientError as problem:
            # One lost broker of three may fail a question that the other two answer a moment later.
            if _is_past(deadline):
                return named | {"unreachable": (problem.what, problem.next_step)}
            time.sleep(AGAIN_AFTER_S)


def _asked(settings: Settings, kafka: KafkaSettings) -> dict[str, Any]:
    with Admin(kafka) as admin:
        cluster = admin.cluster()
        specs = (*needed(settings), *_of_queues(settings, admin))
        topics = admin.describe([spec.name for spec in specs])
    deadline = time.monotonic() + LEDGERS_TIMEOUT_S
    return {
        "cluster": cluster,
        "specs": specs,
        "topics": topics,
        "founded": _founded(settings, kafka, topics, deadline),
        "clocks": tuple(_clocks(settings, kafka, topics, deadline)),
    }


def _of_queues(settings: Settings, admin: Admin) -> Iterable[TopicSpec]:
    """The ledgers of queues are made by their workers: which there are, the broker knows."""
    names = candidates(admin.names(), prefix=settings.topic_prefix).keys() - {spec.name for spec in needed(settings)}
    for name, info in sorted(admin.describe(names).items()):
        yield from ledger_topics(name, info.partitions)


def _founded(
    settings: Settings, kafka: KafkaSettings, topics: Mapping[str, TopicInfo], deadline: float
) -> Founded | None:
    topic = coordination_topic(settings)
    if topic not in topics or topic + SNAPSHOTS_SUFFIX not in topics:
        return None
    quick = replace(kafka, request_timeout=READ_TIMEOUT)
    log, snapshots = KafkaLog(quick, topic), Snapshots(KafkaLog(quick, topic + SNAPSHOTS_SUFFIX))
    try:
        partitions = range(topics[topic].partitions)
        theirs = {p: founded(log, snapshots, p, is_time_up=lambda: _is_past(deadline)) for p in partitions}
    except (TransientError, NotFound):
        theirs = {}  # the clocks say so
    finally:
        log.close()
        snapshots.close()
    return Founded(settings.claims.topic, genesis(settings.claims), theirs)


def _clocks(
    settings: Settings, kafka: KafkaSettings, topics: Mapping[str, TopicInfo], deadline: float
) -> Iterable[LedgerClock]:
    for ledger in ledgers(settings):
        topic = settings.topic_prefix + ledger
        if topic in topics and topic + SNAPSHOTS_SUFFIX in topics:
            yield furthest(_clocks_of(replace(kafka, request_timeout=READ_TIMEOUT), ledger, topics[topic], deadline))


def _clocks_of(kafka: KafkaSettings, ledger: str, topic: TopicInfo, deadline: float) -> Iterable[LedgerClock]:
    """One for each partition, up to the first that cannot be read: the others would wait as long, for nothing."""
    log, snapshots = KafkaLog(kafka, topic.name), Snapshots(KafkaLog(kafka, topic.name + SNAPSHOTS_SUFFIX))
    try:
        for partition in range(topic.partitions):
            try:
                clock_ms, is_whole = log_clock(log, snapshots, partition, is_time_up=lambda: _is_past(deadline))
            except (TransientError, NotFound) as problem:  # its snapshots may have fewer partitions
                yield LedgerClock(ledger, partition, 0, problem.what)
                return
            yield LedgerClock(ledger, partition, clock_ms, "" if is_whole else TOO_LONG)
    finally:
        log.close()
        snapshots.close()


def _is_past(deadline: float) -> bool:
    return time.monotonic() > deadline
