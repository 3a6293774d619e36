"""`penstock lock NAME -- COMMAND`, as people type it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from real_kafka import eventually

from penstock.broker import Embedded

PENSTOCK = [sys.executable, "-m", "penstock"]


@pytest.fixture
def prefix(penstock_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose settings name the broker and a coordination topic of its own."""
    (tmp_path / "penstock.toml").write_text(
        f'[kafka]\nbootstrap_servers = "{penstock_broker.bootstrap}"\n'
        f'[claims]\ntopic = "claims-{uuid.uuid4().hex[:8]}"\npartitions = 1\nheartbeat = "500ms"\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PENSTOCK, "lock", *arguments], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.usefixtures("prefix")
def test_the_command_runs_with_the_token_and_its_exit_code_is_passed_on() -> None:
    script = "import os, sys; print(int(os.environ['PENSTOCK_TOKEN'])); sys.exit(7)"

    first = run("report", "--", sys.executable, "-c", script)
    second = run("report", "--", sys.executable, "-c", script)

    assert (first.returncode, second.returncode) == (7, 7), first.stderr
    assert int(second.stdout) > int(first.stdout)
    assert "lock penstock/report is held, token" in first.stderr


@pytest.mark.usefixtures("prefix")
def test_with_every_one_of_all_who_ask_runs_the_command_and_its_exit_code_is_passed_on() -> None:
    script = "import os, sys; print(int(os.environ['PENSTOCK_TOKEN'])); sys.exit(7)"
    ask = ["report", "--every", "1000w", "--", sys.executable, "-c", script]

    first, second = run(*ask), run(*ask)

    assert (first.returncode, second.returncode) == (7, 0), first.stderr + second.stderr
    assert (first.stdout != "", second.stdout) == (True, "")
    assert "job penstock/report runs for" in first.stderr
    assert "job penstock/report was run in this period already" in second.stderr


@pytest.mark.usefixtures("prefix")
def test_a_job_is_due_again_after_a_reset() -> None:
    ask = ["report", "--every", "1000w", "--", sys.executable, "-c", "print('ran')"]
    assert (run(*ask).stdout, run(*ask).stdout) == ("ran\n", "")

    reset = subprocess.run(
        [*PENSTOCK, "claims", "reset", "penstock/report", "--to", "0", "--yes"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert reset.returncode == 0, reset.stderr
    assert run(*ask).stdout == "ran\n"


def test_with_no_wait_it_exits_6_while_somebody_else_holds_it(prefix: Path) -> None:
    hold = f"import pathlib, time\npathlib.Path({str(prefix / 'held')!r}).touch()\ntime.sleep(600)"
    with subprocess.Popen([*PENSTOCK, "lock", "report", "--", sys.executable, "-c", hold]) as holder:
        try:
            eventually((prefix / "held").exists)

            refused = run("report", "--no-wait", "--", "true")

            assert refused.returncode == 6
            assert "was not to be had" in refused.stderr
            assert "next:" in refused.stderr
        finally:
            holder.terminate()


@pytest.mark.usefixtures("prefix")
def test_a_command_that_does_not_exist_is_named_with_exit_3() -> None:
    done = run("report", "--", "no-such-command-anywhere")

    assert done.returncode == 3
    assert "no-such-command-anywhere" in done.stderr


def test_a_lost_lock_stops_the_command(tmp_path: Path) -> None:
    with Embedded(data=tmp_path / "kafka") as own:
        held = tmp_path / "held"
        script = f"import pathlib, time\npathlib.Path({str(held)!r}).touch()\ntime.sleep(600)"
        (tmp_path / "penstock.toml").write_text("[claims]\npartitions = 1\nheartbeat = '500ms'\n")
        command = [*PENSTOCK, "lock", "report", "-b", own.bootstrap, "--", sys.executable, "-c", script]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
            try:
                eventually(held.exists)
                own.stop(1)  # the broker hangs: nobody can tell any more whose the lock is
                _, errors = child.communicate(timeout=90)
            finally:
                own.cont(1)
                child.kill()

        assert child.returncode == 1
        assert "was lost, the command was stopped" in errors


def test_without_a_kafka_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    done = run("report", "--", "true")

    assert done.returncode == 2
    assert "penstock broker start" in done.stderr
