"""The books of a lake: every version of a table against what its topics show, read without Spark.

A version is right when each row is there once and belongs to a visible message, when no visible message at or below
the stored offset is missing, and when no row is above it. What is bad or filtered must not be a row; the bad ones are
in the dead letters, once each, and those have offsets of their own that are judged in the same way.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable, QueryBuilder
from lake_table import log_of

from penstock.kafka.reader import Reader
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What one app_id lands in a table, and what it has to leave out."""

    app_id: str
    visible: frozenset[Place]
    bad: frozenset[Place] = frozenset()
    filtered: frozenset[Place] = frozenset()
    late: frozenset[Place] = frozenset()
    """Bad ones that were good at first: the dead letters may have them later than their offset says."""
    with_topic: bool = False

    @property
    def expected(self) -> frozenset[Place]:
        return self.visible - self.bad - self.filtered

    def name_of(self, topic: str, partition: int) -> str:
        return f"{self.app_id}-{topic}-{partition}" if self.with_topic else f"{self.app_id}-{partition}"

    def dead(self) -> Feed:
        return Feed(app_id=f"{self.app_id}.dead", visible=self.bad, late=self.late, with_topic=self.with_topic)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A table at one point of its history."""

    number: int
    rows: tuple[Place, ...]
    stored: Mapping[str, int]


@dataclass
class Books:
    """What was found wrong, in sentences."""

    problems: list[str] = field(default_factory=list)
    versions: int = 0
    rows: int = 0

    def check(self) -> None:
        assert not self.problems, "\n".join(self.problems[:20])


def messages_in(settings: KafkaSettings, *partitions: TopicPartition) -> dict[Place, bytes | None]:
    """Every message that a reader of committed records is shown, with its value."""
    with Reader(settings) as reader:
        return {
            Place(each.topic, each.partition, record.offset()): record.value()
            for each in partitions
            for record in reader.ranges(each, [(0, 1 << 60)])
        }


def is_no_object(value: bytes | None) -> bool:
    try:
        return not isinstance(json.loads(value or b""), dict)
    except ValueError:
        return True


def feed_of(
    app_id: str,
    messages: Mapping[Place, bytes | None],
    *,
    is_bad: Callable[[bytes | None], bool] = is_no_object,
    is_late: Callable[[bytes | None], bool] | None = None,
) -> Feed:
    """Messages as one app_id lands them; which are bad shows in their values."""
    bad = frozenset(place for place, value in messages.items() if is_bad(value))
    late = frozenset(place for place in bad if is_late is not None and is_late(messages[place]))
    return Feed(app_id=app_id, visible=frozenset(messages), bad=bad, late=late)


def books_of(
    table: Path | str,
    *feeds: Feed,
    dead_letters: Path | str | None = None,
    is_whole: bool = True,
    readable_from: int = 0,
    kept_from: int = 0,
) -> Books:
    """Judge all versions. `is_whole`: the last one must have everything. Older ones may lack files after VACUUM
    (`readable_from`), and rows and offsets may go back only below `kept_from`: RESTORE and rewinding do that.
    """
    found = Books()
    versions = list(_versions(table, "_", readable_from, found))
    found.versions, found.rows = len(versions), len(versions[-1].rows) if versions else 0
    found.problems += [problem for each in versions for problem in judged(each, *feeds)]
    found.problems += [
        problem
        for before, after in itertools.pairwise(versions)
        if after.number > kept_from
        for problem in lost_between(before, after)
    ]
    found.problems += _commits(table)
    if is_whole:
        found.problems += unfinished(versions[-1], *feeds)
    if dead_letters is not None:
        _judge_dead(dead_letters, feeds, found, is_whole=is_whole)
    return found


def judged(version: Version, *feeds: Feed) -> Iterator[str]:
    """What is wrong with one version."""
    at = f"version {version.number}:"
    counts = Counter(version.rows)
    yield from (f"{at} {place} is there {count} times" for place, count in sorted(counts.items()) if count > 1)
    yield from (f"{at} {place} is a row of no message that should land" for place in _strangers(counts, feeds))
    for feed in feeds:
        highest: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        for place in counts:
            if place in feed.visible:
                highest[place.topic, place.partition] = max(place.offset, highest[place.topic, place.partition])
        for (topic, partition), offset in sorted(highest.items()):
            stored = version.stored.get(feed.name_of(topic, partition), -1)
            if stored < offset:
                yield f"{at} stored is {stored} of {topic}/{partition}, below its row {offset}"
        for place in sorted(feed.expected - feed.late):
            stored = version.stored.get(feed.name_of(place.topic, place.partition), -1)
            if place.offset <= stored and place not in counts:
                yield f"{at} {place} is missing, though {stored} is stored"


def unfinished(version: Version, *feeds: Feed) -> Iterator[str]:
    """What is still missing in a version that should be the last one."""
    rows = set(version.rows)
    for feed in feeds:
        yield from (f"{place} never landed" for place in sorted(feed.expected - rows))
        for place in sorted(feed.visible):
            stored = version.stored.get(feed.name_of(place.topic, place.partition), -1)
            if stored < place.offset:
                yield f"{place} is behind what is stored in the end, {stored}"


def lost_between(before: Version, after: Version) -> Iterator[str]:
    """Rows and offsets only grow."""
    at = f"version {after.number}:"
    yield from (f"{at} {place} was there before" for place in sorted(set(before.rows) - set(after.rows)))
    for name, stored in before.stored.items():
        if after.stored.get(name, -1) < stored:
            yield f"{at} {name} went back from {stored} to {after.stored.get(name)}"


def _strangers(rows: Iterable[Place], feeds: tuple[Feed, ...]) -> list[Place]:
    return sorted(place for place in rows if not any(place in feed.expected for feed in feeds))


def _judge_dead(place: Path | str, feeds: tuple[Feed, ...], found: Books, *, is_whole: bool) -> None:
    versions = list(_versions(place, "", 0, found))
    dead = [feed.dead() for feed in feeds]
    problems = [problem for each in versions for problem in judged(each, *dead)]
    if is_whole:
        problems += unfinished(versions[-1], *dead)
    found.problems += [f"dead letters: {problem}" for problem in problems]


def _versions(table: Path | str, prefix: str, readable_from: int, found: Books) -> Iterator[Version]:
    """Each version as the independent reader sees it; the offsets also as the log's own text has them."""
    opened = DeltaTable(str(table))
    stored: dict[str, int] = {}
    for number, actions in log_of(table).items():
        stored = stored | {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
        if number < readable_from:
            continue
        opened.load_as_version(number)
        for name, last in stored.items():
            if (read := opened.transaction_version(name)) != last:
                found.problems.append(f"version {number}: the reader finds {read} of {name}, the log has {last}")
        yield Version(number=number, rows=_rows(opened, prefix), stored=stored)


def _rows(table: DeltaTable, prefix: str) -> tuple[Place, ...]:
    names = [f'"{prefix}{name}"' for name in Place._fields]
    read = QueryBuilder().register("t", table).execute(f"SELECT {', '.join(names)} FROM t").read_all()
    columns: list[list[Any]] = [read.column(number).to_pylist() for number in range(len(names))]
    return tuple(itertools.starmap(Place, zip(*columns, strict=True)))


def _commits(table: Path | str) -> Iterator[str]:
    """Rows come with offsets, in the same commit."""
    for number, actions in log_of(table).items():
        added, removed = (
            any(action.get(what, {}).get("dataChange") for action in actions) for what in ("add", "remove")
        )
        if not added or removed:
            continue
        operations = {action["commitInfo"]["operation"] for action in actions if "commitInfo" in action}
        if "RESTORE" not in operations and not any("txn" in action for action in actions):
            yield f"version {number}: rows without offsets"
