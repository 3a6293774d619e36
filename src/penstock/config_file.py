"""Where the file with the settings is: named, or the nearest `penstock.toml` or `pyproject.toml` with our section."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import ConfigError

FILE_NAME = "penstock.toml"


class ConfigFile(NamedTuple):
    path: Path
    table: Mapping[str, Any]
    inside: str = ""
    """`tool.penstock.` when the table is a part of pyproject.toml."""


def find_file(named: Path | None, folder: Path, *, home: Path | None = None) -> ConfigFile | None:
    """The named file; else the nearest `penstock.toml` or `[tool.penstock]`, from here up to the repository or home."""
    if named is not None:
        return _opened(named) or ConfigFile(named, {})
    for place in _searched(folder, home or _home()):
        for name in (FILE_NAME, "pyproject.toml"):
            if (place / name).is_file() and (found := _opened(place / name)) is not None:
                return found
    return None


def _searched(folder: Path, home: Path | None) -> Iterator[Path]:
    above = [folder, *folder.parents]
    end = next((i for i, place in enumerate(above) if (place / ".git").exists() or place == home), 0)
    # Outside a repository and outside home only the folder itself counts: what lies above belongs to others.
    yield from above[: end + 1]


def _opened(path: Path) -> ConfigFile | None:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(
            f"cannot read {path}: {failure}", next_step="name a readable file with --config or PENSTOCK_CONFIG"
        ) from failure
    except tomllib.TOMLDecodeError as failure:
        raise ConfigError(f"{path} is not TOML: {failure}", next_step="mend that line") from failure
    if path.name != "pyproject.toml":
        return ConfigFile(path, table)
    match table:
        case {"tool": {"penstock": inside}}:
            return ConfigFile(path, inside, "tool.penstock.")
    return None


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a container's nameless user has none
        return None
