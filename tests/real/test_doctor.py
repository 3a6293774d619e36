"""`penstock doctor` and `penstock topics` on a real broker: what is wrong is found, mended, and found mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from real_kafka import eventually

from penstock.app import App
from penstock.broker import Embedded
from penstock.kafka.topics import Admin, TopicSpec
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration


class Place:
    """A folder with a configuration for one ledger, under a prefix of its own on a shared broker."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder, self.bootstrap = folder, bootstrap
        self.prefix = f"doctor-{uuid.uuid4().hex[:8]}."
        self.ledger = f"{self.prefix}orders"
        self.configure(partitions=2)

    def configure(self, *, partitions: int) -> None:
        (self.folder / "penstock.toml").write_text(
            f"topic_prefix = '{self.prefix}'\n[kafka]\nbootstrap_servers = '{self.bootstrap}'\n"
            f"[ledgers.orders]\npartitions = {partitions}\n"
        )

    def penstock(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        result = subprocess.run(
            [sys.executable, "-m", "penstock", *arguments, "--json"],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)

    def doctor(self, *arguments: str) -> tuple[int, dict[str, str], list[str]]:
        code, document = self.penstock("doctor", *arguments)
        statuses = {found["name"].replace(self.prefix, ""): found["status"] for found in document["findings"]}
        return code, statuses, document["fixed"]


@pytest.fixture
def admin(penstock_broker: Any) -> Iterator[Admin]:
    with Admin(KafkaSettings(bootstrap_servers=penstock_broker.bootstrap)) as admin:
        yield admin


@pytest.fixture
def place(penstock_broker: Any, tmp_path: Path) -> Place:
    return Place(tmp_path, penstock_broker.bootstrap)


def test_missing_topics_are_red_until_they_are_made(place: Place) -> None:
    code, statuses, _ = place.doctor()
    assert code == 5
    assert (statuses["topic: orders"], statuses["topic: orders.snapshots"]) == ("red", "red")

    code, statuses, fixed = place.doctor("--fix")
    assert code == 0, statuses
    assert [sentence.split()[:3] for sentence in fixed] == [
        ["made", "topic", place.ledger],
        ["made", "topic", f"{place.ledger}.snapshots"],
        ["made", "topic", f"{place.prefix}penstock.claims"],
        ["made", "topic", f"{place.prefix}penstock.claims.snapshots"],
    ]
    assert (statuses["broker"], statuses["brokers"]) == ("green", "yellow")
    assert (statuses["topic: orders"], statuses["clock: orders"]) == ("green", "green")
    assert (statuses["topic: penstock.claims"], statuses["clock: penstock.claims"]) == ("green", "green")

    code, _, fixed = place.doctor("--fix")
    assert (code, fixed) == (0, [])


def test_a_heartbeat_other_than_the_founders_is_red(place: Place) -> None:
    claims = ClaimsSettings(heartbeat=duration("700ms"))
    kafka = KafkaSettings(bootstrap_servers=place.bootstrap)
    with App("shop", settings=Settings(kafka=kafka, claims=claims, topic_prefix=place.prefix)).lock("founder"):
        pass

    code, document = place.penstock("doctor")

    found = next(one for one in document["findings"] if one["name"] == "genesis: penstock.claims")
    assert (code, found["status"]) == (5, "red")
    assert "heartbeat_ms 700, the settings say 2000" in found["what"]
    assert 'heartbeat = "700ms"' in found["mend"]


def test_settings_that_would_lose_facts_are_found_and_mended(place: Place, admin: Admin) -> None:
    place.penstock("topics", "apply")
    admin.alter(
        place.ledger,
        {"cleanup.policy": "compact", "retention.ms": "1000000", "message.timestamp.type": "CreateTime"},
    )
    admin.alter(f"{place.ledger}.snapshots", {"cleanup.policy": "delete", "unclean.leader.election.enable": "true"})

    code, statuses, _ = place.doctor()
    assert code == 5
    assert (statuses["topic: orders"], statuses["topic: orders.snapshots"]) == ("red", "red")

    code, statuses, fixed = place.doctor("--fix")
    assert code == 0, statuses
    assert len(fixed) == 2
    config = admin.describe([place.ledger])[place.ledger].config
    assert (config["cleanup.policy"], config["retention.ms"]) == ("delete", "-1")
    assert config["message.timestamp.type"] == "LogAppendTime"


def test_apply_makes_the_topics_once_and_then_changes_nothing(place: Place, admin: Admin) -> None:
    code, rehearsed = place.penstock("topics", "apply", "--dry-run")
    assert (code, rehearsed["applied"]) == (0, False)
    assert admin.describe([place.ledger]) == {}

    actions = []
    for _ in range(2):
        code, document = place.penstock("topics", "apply")
        assert code == 0
        actions.append([topic["action"] for topic in document["topics"]])

    assert actions == [["created"] * 4, ["unchanged"] * 4]
    assert admin.describe([place.ledger])[place.ledger].partitions == 2


def test_what_plan_says_is_what_apply_makes(place: Place, admin: Admin) -> None:
    place.penstock("topics", "apply")
    _, plan = place.penstock("topics", "plan")

    for topic in plan["topics"]:
        there = admin.describe([topic["name"]])[topic["name"]]
        assert there.partitions == topic["partitions"]
        # Written for three brokers; one broker can only keep one copy.
        wanted = {**topic["config"], "min.insync.replicas": "1"}
        assert {setting: there.config[setting] for setting in wanted} == wanted


def test_another_number_of_partitions_is_refused_and_nothing_is_touched(place: Place, admin: Admin) -> None:
    place.penstock("topics", "apply")
    admin.alter(place.ledger, {"retention.ms": "1000000"})
    place.configure(partitions=3)

    code, document = place.penstock("topics", "apply")

    assert (code, document["applied"]) == (6, False)
    actions = {topic["name"].removeprefix(place.prefix): topic["action"] for topic in document["topics"]}
    assert (actions["orders"], actions["orders.snapshots"]) == ("refused", "refused")
    assert actions["penstock.claims"] == "unchanged"
    assert "set partitions = 2" in document["topics"][0]["next"]
    assert admin.describe([place.ledger])[place.ledger].config["retention.ms"] == "1000000"
    assert place.doctor()[0] == 5


def test_a_coordination_topic_with_other_partitions_or_settings_is_found(place: Place, admin: Admin) -> None:
    topic = f"{place.prefix}penstock.claims"
    place.penstock("topics", "apply")
    admin.grow(topic, 9)
    admin.alter(f"{topic}.snapshots", {"cleanup.policy": "delete"})

    code, document = place.penstock("doctor")

    found = {one["name"].replace(place.prefix, ""): one for one in document["findings"]}
    assert code == 5
    assert "has 9 partitions, the configuration says 8" in found["topic: penstock.claims"]["what"]
    assert "set partitions = 9" in found["topic: penstock.claims"]["mend"]
    assert "cleanup.policy is delete" in found["topic: penstock.claims.snapshots"]["what"]


def test_a_log_clock_in_the_future_is_found_and_reset(place: Place, admin: Admin) -> None:
    place.penstock("topics", "apply")
    append_in_the_future(place.ledger, place.bootstrap, admin, ahead_s=1_800)

    code, statuses, _ = place.doctor()
    assert (code, statuses["clock: orders"], statuses["topic: orders"]) == (5, "red", "green")

    code, statuses, fixed = place.doctor("--fix")
    assert code == 0, statuses
    assert statuses["clock: orders"] == "green"
    assert fixed == ["appended ClockReset to every partition of ledger orders"]


def append_in_the_future(topic: str, bootstrap: str, admin: Admin, *, ahead_s: int) -> None:
    """What a broker with a wrong clock leaves behind: one record from the future, then one from now."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})

    def time_type_of_junk(at_s: float) -> int:
        delivered = []
        producer.produce(
            topic,
            b"junk",
            partition=1,
            timestamp=int(at_s * 1_000),
            on_delivery=lambda failure, message: delivered.append((failure, message)),
        )
        assert producer.flush(30) == 0
        [(failure, message)] = delivered
        assert failure is None
        return int(message.timestamp()[0])

    for setting, time_type, at_s in (
        ("CreateTime", confluent_kafka.TIMESTAMP_CREATE_TIME, time.time() + ahead_s),
        ("LogAppendTime", confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, time.time()),
    ):
        admin.alter(topic, {"message.timestamp.type": setting})
        # The broker takes a setting over a moment after it has said yes.
        eventually(lambda at_s=at_s, time_type=time_type: time_type_of_junk(at_s) == time_type)


def test_three_brokers_are_asked_for_three_copies_and_a_lost_one_is_told(tmp_path: Path) -> None:
    with Embedded(brokers=3) as kafka, Admin(KafkaSettings(bootstrap_servers=kafka.bootstrap)) as admin:
        place = Place(tmp_path, kafka.bootstrap)
        single = TopicSpec(name=place.ledger, partitions=2, config={}, reason="made by hand", replication=1)
        admin.create([single])
        code, statuses, _ = place.doctor("--fix")
        assert (code, statuses["topic: orders"]) == (5, "red"), "copies cannot be added without moving data"

        admin.delete([place.ledger])
        code, statuses, _ = place.doctor("--fix")
        assert (code, set(statuses.values())) == (0, {"green"}), statuses
        made = admin.describe([place.ledger])[place.ledger]
        assert (made.replication, made.config["min.insync.replicas"]) == (3, "2")

        kafka.kill(3)
        # Until the survivors have noticed, all still looks well.
        eventually(lambda: "replicas: orders" in place.doctor()[1])
        code, statuses, _ = place.doctor()
        assert (code, statuses["replicas: orders"], statuses["topic: orders"]) == (0, "yellow", "green"), statuses
