"""What a table's log says without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.table_log import facts_of


def add(path: str, size: int, rows: int | None, **more: object) -> dict[str, Any]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    return {"add": {"path": path, "size": size, "stats": stats, **more}}


def commit(at_ms: int) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": at_ms, "operation": "STREAMING UPDATE"}}


def txn(name: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": name, "version": version}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


def write(table: Path, version: int, *actions: dict[str, Any]) -> None:
    text = "\n".join(map(json.dumps, actions))
    (table / "_delta_log" / f"{version:020}.json").write_text(text)


def test_all_versions_are_added_up(table: Path) -> None:
    write(table, 0, commit(1))
    write(table, 1, commit(2), add("a", 100, 10), add("b", 50, 5), txn("app-0", 9), txn("app-1", 4))
    write(table, 2, commit(3), {"remove": {"path": "b"}}, add("c", 30, 3), txn("app-0", 12))

    facts = facts_of(table)

    assert facts is not None
    assert (facts.version, facts.files, facts.bytes, facts.rows, facts.committed_ms) == (2, 2, 130, 13, 3)
    assert facts.transactions == {"app-0": 12, "app-1": 4}
    assert facts.mean_file_bytes == 65


def test_rows_that_were_deleted_within_a_file_do_not_count(table: Path) -> None:
    vector = {"pathOrInlineDv": "v", "offset": 1, "cardinality": 4}
    write(table, 0, add("a", 100, 10))
    write(table, 1, {"remove": {"path": "a"}}, add("a", 100, 10, deletionVector=vector))

    facts = facts_of(table)

    assert facts is not None
    assert (facts.files, facts.rows) == (1, 6)


def test_files_without_statistics_leave_the_rows_unknown(table: Path) -> None:
    write(table, 0, add("a", 100, None))

    facts = facts_of(table)

    assert facts is not None
    assert (facts.files, facts.rows) == (1, None)


def test_where_old_versions_are_gone_the_newest_summary_tells_all_but_the_rows(table: Path) -> None:
    write(table, 7, commit(8), txn("app-0", 12))
    told = {"numFiles": 4, "tableSizeBytes": 400, "setTransactions": [{"appId": "app-0", "version": 12}]}
    (table / "_delta_log" / f"{7:020}.crc").write_text(json.dumps(told))

    facts = facts_of(table)

    assert facts is not None
    assert (facts.version, facts.files, facts.bytes, facts.rows, facts.committed_ms) == (7, 4, 400, None, 8)
    assert facts.transactions == {"app-0": 12}


def test_a_log_that_does_not_tell_enough_says_nothing(table: Path) -> None:
    assert facts_of(table) is None
    assert facts_of(table / "nowhere") is None
    write(table, 7, commit(8))
    assert facts_of(table) is None
    (table / "_delta_log" / f"{7:020}.crc").write_text("{")
    assert facts_of(table) is None
