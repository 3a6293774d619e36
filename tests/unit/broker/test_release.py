from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.jars import listed
from penstock.broker.release import find_release
from penstock.errors import ConfigError, Unavailable, WrongChecksum


@pytest.fixture(autouse=True)
def _no_jars_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_JARS", raising=False)
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def _kafka_home(home: Path, version: str) -> Path:
    (home / "libs").mkdir(parents=True)
    for name in (f"kafka_2.13-{version}.jar", f"kafka_2.13-{version}-sources.jar", "scala-library-2.13.18.jar"):
        (home / "libs" / name).write_bytes(b"")
    return home


def test_the_list_names_every_jar_once_with_checksum_and_size() -> None:
    kafka = listed("kafka")

    assert len({jar.name for jar in kafka}) == len(kafka) == 46
    assert all(len(jar.sha256) == 64 and int(jar.sha256, 16) and jar.size > 0 for jar in kafka)
    assert "kafka_2.13-4.3.1.jar" in {jar.name for jar in kafka}


def test_a_kafka_installation_is_used_without_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(_kafka_home(tmp_path / "kafka", "4.1.0")))

    release = find_release()

    assert (release.version, release.origin) == ("4.1.0", "KAFKA_HOME")
    assert [path.name for path in release.jars] == ["kafka_2.13-4.1.0.jar", "scala-library-2.13.18.jar"]


def test_a_kafka_before_4_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(_kafka_home(tmp_path / "kafka", "3.9.1")))

    with pytest.raises(ConfigError, match=r"Kafka 3\.9\.1.*unset it"):
        find_release()


def test_a_kafka_home_without_kafka_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))

    with pytest.raises(ConfigError, match="KAFKA_HOME is"):
        find_release()


def test_a_given_folder_that_lacks_a_jar_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_JARS", str(tmp_path))

    with pytest.raises(Unavailable, match=listed("kafka")[0].name):
        find_release()


def test_a_given_folder_with_another_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for jar in listed("kafka"):
        (tmp_path / jar.name).write_bytes(b"not what it says")
    monkeypatch.setenv("PENSTOCK_JARS", str(tmp_path))

    with pytest.raises(WrongChecksum, match="SHA-256"):
        find_release()
