"""Imports point one way, and pure modules stay pure: the contracts of pyproject.toml, and proof that they bite."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]


def linted(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINT, "--config", str(root / "pyproject.toml"), "--no-cache"],
        cwd=root,
        env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin", "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_every_contract_is_kept() -> None:
    result = linted(ROOT)

    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: [3-9] kept, 0 broken", result.stdout), result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("settings.py", "import penstock.kafka.topics", "imports point one way"),
        ("kafka/topics.py", "import penstock.ledger.machine", "imports point one way"),
        ("ledger/machine.py", "import penstock.testing.simulate", "imports point one way"),
        ("ledger/machine.py", "import time", "pure modules know no client"),
        ("ledger/codec.py", "import os", "pure modules know no client"),
        ("values.py", "import random", "pure modules know no client"),
        ("cli/main.py", "import confluent_kafka", "only penstock.kafka touches the client"),
        ("doctor/look.py", "import confluent_kafka", "only penstock.kafka touches the client"),
        ("lake/offsets.py", "import pyspark", "pure modules know no client"),
        ("lake/pipeline.py", "import confluent_kafka", "only penstock.kafka touches the client"),
        ("lake/landing.py", "import delta", "only the sink of the lake knows Delta's classes"),
        ("broker/jars.py", "import penstock.lake.jars", "imports point one way"),
    ],
)
def test_an_import_in_the_wrong_direction_is_caught(copy: Path, module: str, line: str, broken: str) -> None:
    file = copy / "src" / "penstock" / module
    file.write_text(file.read_text().replace("from __future__ import annotations\n", f"{line}\n", 1))
    assert line in file.read_text()

    result = linted(copy)

    assert result.returncode == 1
    assert re.search(rf"{broken}.* BROKEN", result.stdout), result.stdout


def test_every_part_of_the_package_is_under_a_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract for contract in config["contracts"] if contract["type"] == "layers")["layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    parts = {
        f"penstock.{path.stem}"
        for path in (ROOT / "src" / "penstock").iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__")) or (path / "__init__.py").is_file()
    }

    assert parts - named == set()


def test_only_penstock_kafka_names_the_client() -> None:
    """Also as text: an import that is hidden in a function or in `importlib` would pass the contract above."""
    naming = {
        path.relative_to(ROOT / "src").parts[1]
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"^\s*(import|from) confluent_kafka|import_module\(.confluent", path.read_text(), re.MULTILINE)
    }

    assert naming <= {"kafka"}


def test_there_is_no_assert_in_the_package_but_to_narrow_a_type() -> None:
    """`python -O` removes them."""
    found = [
        f"{path.name}:{number}"
        for path in (ROOT / "src").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(r"\s*assert\b(?! isinstance\(| \w[\w.]* is not None$)", line)
    ]

    assert found == []


def test_nothing_from_outside_is_unpickled_or_evaluated() -> None:
    dangerous = re.compile(r"\b(pickle|marshal|shelve)\b|(?<![\w.])(eval|exec)\(|yaml\.load\(|shell=True")
    found = [str(path) for path in (ROOT / "src").rglob("*.py") if dangerous.search(path.read_text())]

    assert found == []
