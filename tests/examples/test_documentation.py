"""What the documentation shows is run, and what it links to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_the_program_on_the_first_screen_of_the_readme_runs(tmp_path: Path) -> None:
    [program, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(((?!https?:)[^)#]+)", page.read_text("utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_command_in_the_documentation_exists() -> None:
    told = {
        match
        for page in PAGES
        for match in re.findall(r"(?:^|`)penstock ([a-z]+)\b", page.read_text("utf-8"), flags=re.MULTILINE)
    }
    listed = subprocess.run(
        [sys.executable, "-m", "penstock", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert len(told) > 5
    assert {name for name in told if not re.search(rf"^  {name} ", listed, flags=re.MULTILINE)} == set()
