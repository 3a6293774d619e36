"""What can be set about sending."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load
from penstock.errors import ConfigError
from penstock.settings import Settings
from penstock.values import duration


def test_the_defaults_are_those_that_are_promised() -> None:
    send = Settings().send

    assert (send.payload_max_bytes, send.key_max_bytes) == (1_000_000, 1_024)
    assert (send.headers_max, send.headers_max_bytes, send.timeout) == (64, 16_384, duration("30s"))


def test_a_file_and_the_environment_set_them(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[send]\ntimeout = "5s"\nkey_max_bytes = 9\n')

    send = load(environ={"PENSTOCK_SEND_KEY_MAX_BYTES": "8"}, folder=tmp_path).settings.send

    assert (send.timeout, send.key_max_bytes) == (duration("5s"), 8)


@pytest.mark.parametrize(
    ("line", "objection"),
    [
        ('timeout = "99ms"', "send timeout 99ms is too short"),
        ("payload_max_bytes = 0", "send payload_max_bytes 0 is out of bounds"),
        ("payload_max_bytes = 400000000", "send payload_max_bytes 400000000 is out of bounds"),
        ("key_max_bytes = 0", "send key_max_bytes 0 is out of bounds"),
        ("headers_max = -1", "send headers_max -1 is out of bounds"),
        ("headers_max_bytes = -1", "send headers_max_bytes -1 is out of bounds"),
    ],
)
def test_what_is_out_of_bounds_is_refused(tmp_path: Path, line: str, objection: str) -> None:
    (tmp_path / "penstock.toml").write_text(f"[send]\n{line}\n")

    with pytest.raises(ConfigError) as refused:
        load(environ={}, folder=tmp_path)

    assert objection in refused.value.what
