"""The table of invariants in docs/testing.md: complete, and every test and planted bug that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "docs" / "testing.md").read_text().splitlines()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in LINES if re.match(r"\| (I\d+|T) \|", line)]
SOURCES = "\n".join(
    path.read_text()
    for folder in ("src/penstock/testing", "tests/unit/claims", "tests/simulation")
    for path in (ROOT / folder).glob("*.py")
    if path != Path(__file__)
)


def test_every_invariant_has_a_row_with_a_test_and_a_bug() -> None:
    numbered = {row[0]: row for row in ROWS if row[0] != "T"}

    assert sorted(numbered, key=lambda name: int(name[1:])) == [f"I{number}" for number in range(1, 11)]
    assert all("`" in row[2] and "`" in row[3] for row in ROWS)


def test_every_test_that_is_named_is_there() -> None:
    named = {path for row in ROWS for path in re.findall(r"`(tests/[^`]+)`", row[2])}

    assert {path for path in named if not (ROOT / path).is_file()} == set()


def test_every_planted_bug_that_is_named_is_there() -> None:
    named = {bug for row in ROWS for bug in re.findall(r"`(\w+)`", row[3])}

    assert len(named) >= 15
    assert {bug for bug in named if not re.search(rf"\b{bug}\b", SOURCES)} == set()
