"""What can be set about coordination, and which topics follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load
from penstock.errors import ConfigError, UsageError
from penstock.settings import ClaimsSettings, LedgerSettings, Settings
from penstock.topics import ledgers, needed
from penstock.values import duration


def test_the_defaults_are_those_of_the_protocol() -> None:
    claims = Settings().claims

    assert (claims.topic, claims.partitions, claims.heartbeat) == ("penstock.claims", 8, duration("2s"))
    assert (claims.window, claims.delivery_limit, claims.snapshot_every) == (1_000_000, 5, 100_000)


def test_a_file_and_the_environment_set_them(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[claims]\nheartbeat = "30s"\npartitions = 4\n')

    claims = load(environ={"PENSTOCK_CLAIMS_PARTITIONS": "2"}, folder=tmp_path).settings.claims

    assert claims == ClaimsSettings(heartbeat=duration("30s"), partitions=2)


@pytest.mark.parametrize(
    ("line", "objection"),
    [
        ("partitions = 0", "claims partitions 0 is out of bounds"),
        ("partitions = 10001", "claims partitions 10001 is out of bounds"),
        ('heartbeat = "99ms"', "claims heartbeat 99ms is out of bounds"),
        ('heartbeat = "2h"', "claims heartbeat 2h is out of bounds"),
        ("window = 0", "claims window 0 is out of bounds"),
        ("delivery_limit = 0", "claims delivery_limit 0 is out of bounds"),
        ("snapshot_every = 0", "claims snapshot_every 0 is out of bounds"),
        ('topic = "my claims"', "claims topic name 'my claims' is not allowed"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_line_that_said_so(tmp_path: Path, line: str, objection: str) -> None:
    (tmp_path / "penstock.toml").write_text(f"[claims]\n{line}\n")

    with pytest.raises(ConfigError) as refused:
        load(environ={}, folder=tmp_path)

    assert objection in refused.value.what
    assert f"penstock.toml:claims.{line.split(' ')[0]}" in refused.value.what
    assert refused.value.next_step


def test_the_coordination_ledger_is_needed_whatever_else_is_configured() -> None:
    settings = Settings(claims=ClaimsSettings(topic="who", partitions=3), topic_prefix="eu.")

    assert [(spec.name, spec.partitions) for spec in needed(settings)] == [("eu.who", 3), ("eu.who.snapshots", 3)]


def test_ones_own_ledgers_come_before_it() -> None:
    assert ledgers(Settings(ledgers={"orders": LedgerSettings(partitions=4)})) == {"orders": 4, "penstock.claims": 8}


def test_a_ledger_of_ones_own_cannot_be_the_coordination_ledger() -> None:
    with pytest.raises(UsageError, match=r"ledger penstock\.claims would be the coordination ledger too"):
        needed(Settings(ledgers={"penstock.claims": LedgerSettings()}))
