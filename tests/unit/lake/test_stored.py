"""What is remembered of a table between batches, and what others may have done to it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from penstock.errors import Fenced, Restored
from penstock.lake.offsets import Naming, Offsets
from penstock.lake.sink import Commit, read_commit
from penstock.lake.stored import StoredOffsets
from penstock.values import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NAMING = Naming("app", with_topic=False)


@dataclass
class Log:
    """A table that is only its log; it counts how often all of it had to be gone through."""

    place: str = "lake/orders"
    versions: list[Commit] = field(default_factory=list)
    cleaned_below: int = 0
    asked: int = 0
    guarded: set[TopicPartition] = field(default_factory=set)

    def add(self, operation: str, *, read_version: int | None = None, **txns: int) -> int:
        named = {name.replace("_", "-"): version for name, version in txns.items()}
        version = len(self.versions)
        read = version - 1 if read_version is None else read_version
        self.versions.append(Commit(version, operation, named, read))
        return version

    def commits(self, versions: Iterable[int]) -> Iterator[Commit]:
        for version in versions:
            if version < self.cleaned_below:
                return
            yield self.versions[version]

    @property
    def read_version(self) -> int:
        return len(self.versions) - 1

    def stored(self, naming: Naming, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked += 1
        last = {name: version for commit in self.versions for name, version in commit.txns.items()}
        return {each: last[naming.of(each)] for each in partitions if naming.of(each) in last}

    def guard(self, naming: Naming, partitions: Iterable[TopicPartition]) -> None:
        self.guarded = set(partitions)


def log(*operations: str) -> Log:
    made = Log()
    made.add("CREATE TABLE")
    for operation in operations:
        made.add(operation)
    return made


def read(stored: StoredOffsets, table: Log, *partitions: TopicPartition) -> Offsets:
    return dict(stored.read(table, partitions or (P0,)))  # type: ignore[arg-type]


def test_the_table_is_asked_once_and_every_read_is_guarded() -> None:
    table = log()
    table.add("STREAMING UPDATE", app_0=9)
    stored = StoredOffsets(table, NAMING)  # type: ignore[arg-type]

    assert read(stored, table) == {P0: 9}
    own = table.add("STREAMING UPDATE", app_0=19)
    stored.committed(own, read_version=own - 1, versions={P0: 19})
    assert read(stored, table) == {P0: 19}

    assert table.asked == 1
    assert table.guarded == {P0}


def test_what_others_commit_without_touching_our_offsets_changes_nothing() -> None:
    table = log()
    stored = StoredOffsets(table, NAMING)  # type: ignore[arg-type]
    read(stored, table)
    table.add("OPTIMIZE")
    table.add("STREAMING UPDATE", other_0=500)

    assert read(stored, table) == {}
    assert table.asked == 1


def test_somebody_else_with_our_offsets_fences_us() -> None:
    table = log()
    table.add("STREAMING UPDATE", app_0=9)
    stored = StoredOffsets(table, NAMING)  # type: ignore[arg-type]
    read(stored, table)
    table.add("STREAMING UPDATE", app_0=19)

    with pytest.raises(Fenced, match="version 2"):
        read(stored, table)


def test_our_own_commit_behind_others_is_known_and_the_others_are_looked_at() -> None:
    table = log()
    stored = StoredOffsets(table, NAMING)  # type: ignore[arg-type]
    read(stored, table)
    table.add("OPTIMIZE")
    own = table.add("STREAMING UPDATE", app_0=9)
    stored.committed(own, read_version=0, versions={P0: 9})
    assert read(stored, table) == {P0: 9}

    table.add("RESTORE")
    own = table.add("STREAMING UPDATE", app_0=19)
    stored.committed(own, read_version=2, versions={P0: 19})
    with pytest.raises(Restored) as found:
        read(stored, table)
    assert found.value.version == 3


def test_a_restore_behind_our_last_commit_stops_a_new_run_and_one_before_it_does_not() -> None:
    table = log()
    table.add("RESTORE")
    table.add("STREAMING UPDATE", app_0=9)
    assert read(StoredOffsets(table, NAMING), table) == {P0: 9}  # type: ignore[arg-type]

    table.add("RESTORE")
    table.add("OPTIMIZE")
    with pytest.raises(Restored):
        read(StoredOffsets(table, NAMING), table)  # type: ignore[arg-type]


def test_a_restore_that_our_last_commit_did_not_see_stops_a_new_run_too() -> None:
    table = log()
    table.add("STREAMING UPDATE", app_0=9)
    table.add("RESTORE")
    table.add("STREAMING UPDATE", app_0=19, read_version=1)

    with pytest.raises(Restored) as found:
        read(StoredOffsets(table, NAMING), table)  # type: ignore[arg-type]
    assert found.value.version == 2


def test_a_table_that_has_nothing_of_ours_may_have_been_restored() -> None:
    assert read(StoredOffsets(table := log("RESTORE"), NAMING), table) == {}  # type: ignore[arg-type]


def test_a_log_that_was_cleaned_up_is_looked_at_as_far_as_it_goes() -> None:
    table = log()
    table.add("STREAMING UPDATE", app_0=9)
    table.add("OPTIMIZE")
    table.cleaned_below = 2

    assert read(StoredOffsets(table, NAMING), table) == {P0: 9}  # type: ignore[arg-type]


def test_a_partition_that_was_not_asked_for_before_is_asked_for() -> None:
    table = log()
    table.add("STREAMING UPDATE", app_0=9, app_1=4)
    stored = StoredOffsets(table, NAMING)  # type: ignore[arg-type]

    assert read(stored, table, P0) == {P0: 9}
    assert read(stored, table, P0, P1) == {P0: 9, P1: 4}


def test_a_file_of_the_log_is_read_without_its_rows() -> None:
    text = "\n".join(
        [
            '{"commitInfo":{"operation":"STREAMING UPDATE","readVersion":4}}',
            '{"txn":{"appId":"app-0","version":12,"lastUpdated":1}}',
            '{"add":not even JSON',
            '{"remove":nor this',
        ]
    )

    assert read_commit(7, text) == Commit(7, "STREAMING UPDATE", {"app-0": 12}, 4)
