from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.datafolder import Reach, cluster_at, found, node_folder, note_reach, reach_of
from penstock.errors import Refused, UsageError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a.checkpoint"
    path.write_bytes(b"feature levels")
    return path


def test_a_new_folder_is_formatted_for_every_node_of_one_cluster(tmp_path: Path, checkpoint: Path) -> None:
    data = tmp_path / "deep" / "data"

    cluster = found(data, brokers=3, checkpoint=checkpoint)

    for number in (1, 2, 3):
        directory = node_folder(data, number) / "kafka"
        meta = dict(line.split("=") for line in (directory / "meta.properties").read_text().splitlines())
        assert (meta["cluster.id"], meta["node.id"], meta["version"]) == (cluster.cluster_id, str(number), "1")
        assert (directory / "bootstrap.checkpoint").read_bytes() == b"feature levels"


def test_founding_again_changes_nothing(tmp_path: Path, checkpoint: Path) -> None:
    first = found(tmp_path / "data", brokers=1, checkpoint=checkpoint)
    meta = (node_folder(tmp_path / "data", 1) / "kafka" / "meta.properties").read_text()

    assert found(tmp_path / "data", brokers=1, checkpoint=checkpoint) == first == cluster_at(tmp_path / "data")
    assert (node_folder(tmp_path / "data", 1) / "kafka" / "meta.properties").read_text() == meta


def test_a_cluster_of_another_size_is_refused_with_the_flag_that_helps(tmp_path: Path, checkpoint: Path) -> None:
    found(tmp_path / "data", brokers=3, checkpoint=checkpoint)

    with pytest.raises(UsageError, match="--brokers 3"):
        found(tmp_path / "data", brokers=1, checkpoint=checkpoint)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")

    with pytest.raises(Refused, match=r"thesis\.txt"):
        found(tmp_path / "home", brokers=1, checkpoint=checkpoint)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.txt"]


def test_a_file_in_the_place_of_the_folder_is_a_usage_error(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "data").write_text("")

    with pytest.raises(UsageError, match="cannot keep a broker's data"):
        found(tmp_path / "data", brokers=1, checkpoint=checkpoint)


def test_a_damaged_description_is_refused_not_overwritten(tmp_path: Path, checkpoint: Path) -> None:
    found(tmp_path / "data", brokers=1, checkpoint=checkpoint)
    (tmp_path / "data" / "cluster.json").write_text('{"cluster_id"')

    with pytest.raises(Refused, match="damaged"):
        found(tmp_path / "data", brokers=1, checkpoint=checkpoint)


def test_what_was_noted_of_the_last_start_is_read_back(tmp_path: Path) -> None:
    assert reach_of(tmp_path) is None
    reach = Reach(bootstrap="127.0.0.1:1", version="4.3.1")

    note_reach(tmp_path, reach)

    assert reach_of(tmp_path) == reach
