from __future__ import annotations

import subprocess
import sys


def test_the_pytest_plugin_costs_other_projects_nothing() -> None:
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, penstock.testing.plugin; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert "penstock.testing.plugin" in imported
    assert not {"confluent_kafka", "jgo", "rich", "penstock.broker"} & set(imported)
