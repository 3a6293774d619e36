"""Which Apache Kafka to run: the one of our list, or one that the user has."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.broker import jars
from penstock.errors import ConfigError

_CORE_JAR = re.compile(r"kafka_2\.\d+-(\d+\.\d+\.\d+\S*)\.jar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A Kafka that can be run: its version, its jars, and where they came from."""

    version: str
    jars: tuple[Path, ...]
    origin: str

    @property
    def classpath(self) -> str:
        return os.pathsep.join(map(str, self.jars))

    @property
    def fingerprint(self) -> str:
        """Differs between any two sets of jars that could behave differently."""
        facts = sorted(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in self.jars)
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def find_release(*, progress: jars.Progress | None = None) -> Release:
    """`PENSTOCK_JARS` (a folder with the jars of our list), else `KAFKA_HOME` (any Kafka 4), else our cached download.

    Raises Unavailable, WrongChecksum or ConfigError; the message says which variable is to blame.
    """
    kafka = jars.listed("kafka")
    if folder := os.environ.get("PENSTOCK_JARS"):
        return _ours(jars.take_from(Path(folder).expanduser().absolute(), kafka), "PENSTOCK_JARS")
    if home := os.environ.get("KAFKA_HOME"):
        return _installed(Path(home).expanduser().absolute())
    return _ours(jars.fetch(kafka, progress=progress), "cache")


def _ours(paths: tuple[Path, ...], origin: str) -> Release:
    return Release(version=_version_of(paths) or "unknown", jars=paths, origin=origin)


def _installed(home: Path) -> Release:
    # Only the jars of the broker itself: signatures, sources and test jars lie beside them.
    paths = tuple(
        sorted(
            path for path in (home / "libs").glob("*.jar") if not re.search(r"-(sources|javadoc|test)\.jar$", path.name)
        )
    )
    version = _version_of(paths)
    if version is None:
        raise ConfigError(
            f"KAFKA_HOME is {home}, but there is no libs/kafka_2.13-….jar in it",
            next_step="point KAFKA_HOME at an unpacked Kafka 4, or unset it",
        )
    if not version.startswith("4."):
        raise ConfigError(
            f"KAFKA_HOME holds Kafka {version}; Penstock's embedded broker needs 4.x",
            next_step="point KAFKA_HOME at a Kafka 4, or unset it to have one fetched",
        )
    return Release(version=version, jars=paths, origin="KAFKA_HOME")


def _version_of(paths: tuple[Path, ...]) -> str | None:
    return next((found[1] for path in paths if (found := _CORE_JAR.fullmatch(path.name))), None)
