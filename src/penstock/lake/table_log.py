"""What the log of a Delta table says, read without Spark: enough for a quick look, never to decide anything.

Every version is a file of JSON lines, and most have a summary beside them (`.crc`). Where the log goes back to its
first version, all of it is added up; where old ones were cleaned away, the newest summary knows all but the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_VERSION = re.compile(r"(\d{20})\.json")
# Beyond that adding up takes longer than starting Spark.
VERSIONS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table as of its newest version."""

    version: int
    files: int
    bytes: int
    rows: int | None
    """None where the log does not say it."""
    committed_ms: int | None = None
    """When the newest version was committed."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """The stored offsets, by name."""

    @property
    def mean_file_bytes(self) -> int | None:
        return self.bytes // self.files if self.files else None


def facts_of(table: Path) -> TableFacts | None:
    """None where there is no table, or its log does not tell enough.

    A version that is committed while we look is in what we say, or not.
    """
    log = table / "_delta_log"
    try:
        names = {int(found[1]): path for path in log.iterdir() if (found := _VERSION.fullmatch(path.name))}
        if not names:
            return None
        newest = max(names)
        if len(names) == newest + 1 <= VERSIONS_MAX:
            return added_up(names[version].read_text("utf-8") for version in sorted(names))
        return summed_up(newest, (log / f"{newest:020}.crc").read_text("utf-8"), names[newest].read_text("utf-8"))
    except (OSError, ValueError, KeyError):
        return None


def added_up(versions: Iterable[str]) -> TableFacts | None:
    """The facts of all versions from the first on."""
    files: dict[str, tuple[int, int | None]] = {}
    transactions: dict[str, int] = {}
    version, committed_ms = -1, None
    for text in versions:
        version += 1
        committed_ms = None
        for line in text.splitlines():
            match json.loads(line):
                case {"add": add}:
                    files[_key(add)] = (add["size"], _rows(add))
                case {"remove": remove}:
                    files.pop(_key(remove), None)
                case {"txn": txn}:
                    transactions[txn["appId"]] = txn["version"]
                case {"commitInfo": info}:
                    committed_ms = info.get("timestamp")
    if version < 0:
        return None
    counts = [rows for _, rows in files.values()]
    return TableFacts(
        version=version,
        files=len(files),
        bytes=sum(size for size, _ in files.values()),
        rows=sum(rows for rows in counts if rows is not None) if None not in counts else None,
        committed_ms=committed_ms,
        transactions=transactions,
    )


def summed_up(version: int, summary: str, newest: str) -> TableFacts:
    """The facts of a version's summary, and the time of its commit. Raises KeyError where it lacks one."""
    told = json.loads(summary)
    info: dict[str, Any] = next(
        (action["commitInfo"] for line in newest.splitlines() if "commitInfo" in (action := json.loads(line))), {}
    )
    return TableFacts(
        version=version,
        files=told["numFiles"],
        bytes=told["tableSizeBytes"],
        rows=None,
        committed_ms=info.get("timestamp"),
        transactions={each["appId"]: each["version"] for each in told["setTransactions"]},
    )


def _key(file: Mapping[str, Any]) -> str:
    """A file whose rows were deleted in part comes back under the same path with another list of them."""
    vector = file.get("deletionVector") or {}
    return f"{file['path']}|{vector.get('pathOrInlineDv', '')}|{vector.get('offset', '')}"


def _rows(add: Mapping[str, Any]) -> int | None:
    count = json.loads(add.get("stats") or "{}").get("numRecords")
    deleted = (add.get("deletionVector") or {}).get("cardinality", 0)
    return None if count is None else int(count) - int(deleted)
