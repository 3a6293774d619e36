"""`penstock claims` on a real broker: what a ledger tells is shown, and what an operator writes holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real_kafka import append, eventually

from penstock.broker import Embedded
from penstock.claims.placement import coordination_topic, genesis, partition_of
from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    Heartbeat,
    RangeClaimed,
    Slot,
)
from penstock.claims.state import Claims
from penstock.errors import GenesisMismatch
from penstock.kafka.topics import Admin, TopicSpec
from penstock.ledger.codec import enveloped
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.machine import Kind
from penstock.ledger.tail import Tail, Ticket, monotonic_ms, read_to_end
from penstock.ledger.topics import make_ledger
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

PARTITIONS = 2


class Place:
    """A coordination ledger of its own, and a folder from which the command finds it."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder, self.bootstrap = folder, bootstrap
        self.prefix = f"claims-{uuid.uuid4().hex[:8]}."
        self.configure()
        make_ledger(self.settings.kafka, coordination_topic(self.settings), partitions=PARTITIONS)

    def configure(self, *, heartbeat: str = "10m", partitions: int = PARTITIONS) -> None:
        claims = ClaimsSettings(partitions=partitions, heartbeat=duration(heartbeat))
        self.settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=self.bootstrap), claims=claims, topic_prefix=self.prefix
        )
        (self.folder / "penstock.toml").write_text(
            f"topic_prefix = '{self.prefix}'\n[kafka]\nbootstrap_servers = '{self.bootstrap}'\n"
            f"[claims]\npartitions = {partitions}\nheartbeat = '{heartbeat}'\n"
        )

    def topic(self, *, records: int) -> str:
        """A topic with one partition and so many records."""
        name = f"{self.prefix}orders"
        with Admin(self.settings.kafka) as admin:
            admin.create([TopicSpec(name=name, partitions=1, config={}, reason="a test")])
        append(self.settings.kafka, TopicPartition(name, 0), *(b"x" for _ in range(records)))
        return name

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "claims", *arguments],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def state(self, slot: Slot) -> dict[str, Any]:
        return next(one for one in self.json("ls")["slots"] if one["slot"] == str(slot))

    @contextmanager
    def writer(self, *, snapshot_every: int = 10**9) -> Iterator[Writer]:
        log, snapshots = open_ledger(self.settings.kafka, coordination_topic(self.settings))
        tail = Tail(
            log,
            snapshots,
            machine=Claims,
            instance=uuid.uuid4().hex,
            monotonic_ms=monotonic_ms,
            fresh_ms=1_000,
            snapshot_every=snapshot_every,
        )
        try:
            tail.follow(range(PARTITIONS))
            yield Writer(tail, self.settings)
        finally:
            tail.close()


class Writer:
    """Writes records where they belong, and waits for their verdicts."""

    def __init__(self, tail: Tail[Claims], settings: Settings) -> None:
        self.tail = tail
        read_to_end(tail, range(PARTITIONS))
        self.wait([tail.append(partition, genesis(settings.claims)) for partition in range(PARTITIONS)])

    def write(self, *records: Any) -> list[Ticket]:
        tickets = [self.tail.append(place_of(record), record) for record in records]
        self.wait(tickets)
        return tickets

    def wait(self, tickets: list[Ticket]) -> None:
        eventually(lambda: self.tail.step(50) is None or all(ticket.verdict is not None for ticket in tickets))

    def claim(self, slot: Slot, client: str, instance: str = "i1") -> int:
        (ticket,) = self.write(Claimed(slot, client, instance))
        assert ticket.verdict is not None
        assert ticket.verdict.is_accepted, ticket.verdict.reason
        assert ticket.offset is not None
        return ticket.offset


def place_of(record: Any) -> int:
    slot = record.beats[0].slot if isinstance(record, Heartbeat) else record.slot
    return partition_of(slot, PARTITIONS)


def slots_in(partition: int, *, group: str = "g", count: int = 1) -> list[Slot]:
    """Slots that live in this coordination partition."""
    found = (Slot(group, "t", number) for number in range(1_000))
    return [slot for slot in found if partition_of(slot, PARTITIONS) == partition][:count]


@pytest.fixture
def place(penstock_broker: Embedded, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, penstock_broker.bootstrap)
    yield place
    with Admin(place.settings.kafka) as admin:
        admin.delete(name for name in admin.names() if name.startswith(place.prefix))


def test_ls_and_members_show_who_owns_what(place: Place) -> None:
    mine, other = slots_in(0)[0], slots_in(1)[0]
    lock, shared = Slot("jobs", "nightly"), Slot("r", "t", 0)
    with place.writer() as writer:
        epoch = writer.claim(mine, "a")
        writer.write(Heartbeat("a", "i1", (Beat(mine, epoch, position=42),)))
        token = writer.claim(other, "b", "i2")
        writer.write(ClaimReleased(other, "b", "i2", token, position=7))
        writer.claim(lock, "a")
        writer.write(RangeClaimed(shared, "c", "i3", n=10))

    document = place.json("ls")
    slots = {one["slot"]: one for one in document["slots"]}
    assert set(document) == {"slots", "paused", "halted"}
    assert {name: (one["state"], one["owner"], one["position"]) for name, one in slots.items()} == {
        str(mine): ("fresh", "a/i1", 42),
        str(other): ("free", None, 7),
        "jobs/nightly": ("fresh", "a/i1", None),
        "r/t/0": ("fresh", None, 0),
    }
    assert slots[str(mine)]["epoch"] == epoch
    assert (slots[str(mine)]["topic"], slots[str(mine)]["partition"], slots["jobs/nightly"]["name"]) == (
        "t",
        mine.partition,
        "nightly",
    )
    assert (slots["r/t/0"]["range_owners"], slots["r/t/0"]["frontier"]) == (["c/i3"], 10)
    assert [one["slot"] for one in place.json("ls", "--group", "jobs")["slots"]] == ["jobs/nightly"]

    members = {one["client"]: one for one in place.json("members")["members"]}
    assert {name: (one["instance"], one["slots"], one["state"]) for name, one in members.items()} == {
        "a": ("i1", 2, "fresh"),
        "c": ("i3", 1, "fresh"),
    }
    table = place.run("ls").stdout
    assert table.splitlines()[0].split() == ["slot", "state", "owner", "epoch", "position", "age"]
    assert "\x1b" not in table


def test_an_owner_that_is_not_heard_of_any_more_leaves_the_slot_free(place: Place) -> None:
    place.configure(heartbeat="100ms")
    (slot,) = slots_in(0)
    with place.writer() as writer:
        writer.claim(slot, "a")

    eventually(lambda: place.state(slot)["state"] == "free")

    assert place.state(slot)["last_owner"] == "a/i1"
    assert [member["state"] for member in place.json("members")["members"]] == ["expired"]


def test_explain_prints_the_records_that_decided(place: Place) -> None:
    slot, beside = slots_in(0, count=2)
    with place.writer() as writer:
        epoch = writer.claim(slot, "a")
        neighbour = writer.claim(beside, "a")
        beats = (Beat(slot, epoch, position=3), Beat(beside, neighbour))
        writer.write(*(Heartbeat("a", "i1", beats) for _ in range(3)))
        (refused,) = writer.write(Claimed(slot, "b", "i2"))

    document = place.json("explain", str(slot))

    assert [(one["type"], one["sender"], one["verdict"], one["count"]) for one in document["moments"]] == [
        ("claimed", "a/i1", "accepted", 1),
        ("heartbeat", "a/i1", "accepted", 3),
        ("claimed", "b/i2", "ignored", 1),
    ]
    assert [one["reason"] for one in document["moments"]] == ["it was free", "", "owned by a/i1"]
    assert document["moments"][-1]["offset"] == refused.offset
    assert document["summary"].startswith(f"{slot} belongs to a/i1 under epoch {epoch}, last heard of ")
    text = place.run("explain", str(slot)).stdout
    assert "heartbeat x3" in text
    assert text.rstrip().splitlines()[-1].startswith(f"{slot} belongs to a/i1")


@pytest.mark.parametrize("snapshot_every", [10**9, 10])
def test_what_is_dumped_replays_to_the_same_state_also_from_a_cut_log(place: Place, snapshot_every: int) -> None:
    slot, other = slots_in(0)[0], slots_in(1)[0]
    with place.writer(snapshot_every=snapshot_every) as writer:
        epoch = writer.claim(slot, "a")
        writer.claim(other, "b")
        writer.tail.log.append(0, b"junk")
        for position in range(40):
            writer.write(Heartbeat("a", "i1", (Beat(slot, epoch, position=position),)))
            writer.tail.keep_snapshots()
        hashes = [writer.tail.fold(partition).hash() for partition in range(PARTITIONS)]
        is_cut = writer.tail.log.bounds([0])[0].start > 0
        assert is_cut == (snapshot_every == 10)

    dumped = place.run("dump")
    assert dumped.returncode == 0, dumped.stderr
    (place.folder / "all.ndjson").write_text(dumped.stdout)
    replayed = [place.run("replay", "all.ndjson", "--partition", str(p), "--json") for p in range(PARTITIONS)]

    assert [json.loads(one.stdout.splitlines()[-1])["hash"] for one in replayed] == hashes
    assert ("snapshot" in json.loads(dumped.stdout.splitlines()[0])) == is_cut

    mixed = place.run("replay", "all.ndjson")
    assert (mixed.returncode, mixed.stdout) == (2, "")
    assert "--partition" in mixed.stderr
    assert place.run("dump", "--partition", "1").stdout == "".join(
        line for line in dumped.stdout.splitlines(keepends=True) if json.loads(line)["partition"] == 1
    )
    assert place.run("dump", "--partition", "2").returncode == 3


def test_explain_begins_with_the_oldest_snapshot_where_the_log_was_cut(place: Place) -> None:
    (slot,) = slots_in(0)
    with place.writer(snapshot_every=10) as writer:
        epoch = writer.claim(slot, "a")
        for _ in range(40):
            writer.write(Heartbeat("a", "i1", (Beat(slot, epoch),)))
            writer.tail.keep_snapshots()
        start = writer.tail.log.bounds([0])[0].start
        end = writer.tail.fold(0).next_offset

    document = place.json("explain", str(slot))

    assert start > 0
    assert document["snapshot_offset"] == start - 1
    assert [(one["type"], one["count"]) for one in document["moments"]] == [("heartbeat", end - start)]
    assert (document["owner"], document["epoch"]) == ("a/i1", epoch)


def test_lag_is_the_position_against_the_end_of_the_topic(place: Place) -> None:
    topic = place.topic(records=10)
    behind, ahead, done, unset = (Slot(group, topic, 0) for group in ("g", "a", "h", "k"))
    gone, lock = Slot("g", f"{place.prefix}nowhere", 0), Slot("g", "lock")
    with place.writer() as writer:
        for slot, position in ((behind, 4), (ahead, 9), (done, 10), (gone, 1)):
            writer.write(ClaimReleased(slot, "a", "i1", writer.claim(slot, "a"), position=position))
        writer.claim(unset, "a")
        writer.claim(lock, "a")

    document = place.json("lag")

    lags = {one["slot"]: one for one in document["slots"]}
    assert {name: (one["position"], one["end"], one["lag_records"]) for name, one in lags.items()} == {
        str(behind): (4, 10, 6),
        str(ahead): (9, 10, 1),
        str(done): (10, 10, 0),
        str(unset): (None, 10, None),
        str(gone): (1, None, None),
    }
    assert document["lag_records"] == 7
    assert 0 <= lags[str(behind)]["age_ms"] < 120_000
    assert 0 <= lags[str(ahead)]["age_ms"] <= lags[str(behind)]["age_ms"]
    assert lags[str(done)]["age_ms"] is None


def test_a_paused_group_is_granted_nothing_until_it_is_resumed(place: Place) -> None:
    slots = [slots_in(0)[0], slots_in(1)[0]]
    with place.writer() as writer:
        for slot in slots:
            writer.write(ClaimReleased(slot, "a", "i1", writer.claim(slot, "a"), position=1))

        began_ms = time.time_ns() // 1_000_000
        document = place.json("pause", "g", "--for", "10m", "--by", "ann")
        assert (document["group"], document["by"]) == ("g", "ann")
        assert {int(partition) for partition in document["until_ms"]} == {0, 1}
        for until_ms in document["until_ms"].values():
            # Reckoned from the present, though the partition may have been quiet for long.
            assert 600_000 <= until_ms - began_ms < 660_000
        assert {one["state"] for one in place.json("ls", "--group", "g")["slots"]} == {"paused"}
        assert place.json("ls")["paused"]["g"]["coordination_partitions"] == [0, 1]
        tickets = writer.write(*(Claimed(slot, "a", "i1") for slot in slots))
        assert [ticket.verdict.reason for ticket in tickets if ticket.verdict] == ["the group is paused by ann"] * 2
        assert "paused by ann" in place.json("explain", str(slots[0]))["summary"]

        assert place.json("resume", "g")["was_paused_by"] == "ann"
        assert {one["state"] for one in place.json("ls", "--group", "g")["slots"]} == {"free"}
        for slot in slots:
            writer.claim(slot, "a")
        assert place.json("resume", "g")["was_paused_by"] is None


def test_a_pause_holds_also_where_nobody_has_been_yet(place: Place) -> None:
    assert place.run("pause", "g", "--for", "10m").returncode == 3, "a mistyped group must not look paused"

    place.json("pause", "g", "--for", "10m", "--by", "ann", "--new")

    with place.writer() as writer:
        for partition in range(PARTITIONS):
            (ticket,) = writer.write(Claimed(slots_in(partition)[0], "a", "i1"))
            assert ticket.verdict is not None
            assert ticket.verdict.kind is Kind.IGNORED


def test_explain_tells_also_why_nobody_was_ever_granted_a_slot(place: Place) -> None:
    (slot,) = slots_in(0)
    place.json("pause", "g", "--for", "10m", "--by", "ann", "--new")
    with place.writer() as writer:
        writer.write(Claimed(slot, "a", "i1"), Claimed(slot, "a", "i1"))

    document = place.json("explain", str(slot))

    assert [(one["type"], one["reason"], one["count"]) for one in document["moments"]] == [
        ("group_paused", "", 1),
        ("claimed", "the group is paused by ann", 2),
    ]
    assert document["summary"].startswith(
        f"{slot} is free: it was never granted to anybody; its group is paused by ann"
    )


def test_reset_moves_a_free_slot_back_and_forth(place: Place) -> None:
    topic = place.topic(records=10)
    slot = Slot("g", topic, 0)
    with place.writer() as writer:
        writer.write(ClaimReleased(slot, "a", "i1", writer.claim(slot, "a"), position=6))

    for to, position in (("earliest", 0), ("latest", 10), ("3", 3)):
        before = place.state(slot)
        document = place.json("reset", str(slot), "--to", to, "--yes")
        (done,) = document["slots"]
        assert (done["position_before"], done["position"]) == (before["position"], position)
        assert done["epoch"] > before["epoch"], "a reset fences whoever had it before"
        after = place.state(slot)
        assert (after["state"], after["owner"], after["position"]) == ("free", None, position)


def test_reset_refuses_what_it_must_not_do(place: Place) -> None:
    topic = place.topic(records=10)
    owned, lock = Slot("g", topic, 0), Slot("g", "lock")
    with place.writer() as writer:
        writer.claim(owned, "a")
        writer.claim(lock, "a")

        refused = place.run("reset", str(owned), "--to", "earliest", "--yes")
        assert (refused.returncode, refused.stdout) == (6, "")
        assert "owned by a/i1" in refused.stderr
        assert "penstock claims pause g --for 10m" in refused.stderr

        without_yes = place.run("reset", str(owned), "--to", "earliest")
        assert without_yes.returncode == 2
        assert "--yes" in without_yes.stderr
        assert place.run("reset", str(lock), "--to", "earliest", "--yes").returncode == 2
        assert place.run("reset", str(owned), "--to", "11", "--yes").returncode == 2
        assert place.run("reset", str(owned), "--to", "soon", "--yes").returncode == 2

        place.json("pause", "g", "--for", "10m", "--by", "bob")
        writer.write(ClaimReleased(owned, "a", "i1", place.state(owned)["epoch"], position=5))
        by_other = place.run("reset", str(owned), "--to", "earliest", "--yes", "--by", "ann")
        assert by_other.returncode == 6
        assert "paused by bob" in by_other.stderr
        assert place.state(owned)["position"] == 5

        place.json("reset", str(owned), "--to", "earliest", "--yes", "--by", "bob")
        assert (place.state(owned)["state"], place.state(owned)["position"]) == ("paused", 0)


def test_reset_waits_for_the_owner_to_go_after_ones_own_pause(place: Place) -> None:
    place.configure(heartbeat="2s")
    slot = Slot("g", place.topic(records=3), 0)
    with place.writer() as writer:
        writer.claim(slot, "a")
        place.json("pause", "g", "--for", "10m", "--by", "ann")
        writer.write(*([Heartbeat("a", "i1", (Beat(slot, place.state(slot)["epoch"]),))]))

        place.json("reset", str(slot), "--to", "latest", "--yes", "--by", "ann")

    assert place.state(slot)["position"] == 3


def test_a_slot_that_nobody_has_claimed_yet_can_be_placed(place: Place) -> None:
    slot = Slot("late", place.topic(records=4), 0)

    assert place.run("reset", str(slot), "--to", "latest", "--yes").returncode == 3
    place.json("reset", str(slot), "--to", "latest", "--yes", "--new")

    assert place.state(slot)["position"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "g/t/77"),
        ("explain", "nothing"),
        ("ls", "--group", "nobody"),
        ("members", "--group", "nobody"),
        ("lag", "--group", "nobody"),
        ("resume", "nobody"),
        ("reset", "g/t/77", "--to", "earliest", "--yes"),
    ],
)
def test_an_unknown_slot_or_group_leaves_with_3(place: Place, arguments: tuple[str, ...]) -> None:
    with place.writer() as writer:
        writer.claim(Slot("g", "t", 0), "a")

    result = place.run(*arguments)

    assert (result.returncode, result.stdout) == (3, ""), result.stderr
    assert "next:" in result.stderr


def test_nothing_is_shown_of_an_empty_ledger(place: Place) -> None:
    assert place.json("ls") == {"slots": [], "paused": {}, "halted": []}
    assert place.json("members") == {"members": [], "halted": []}
    assert place.json("lag") == {"slots": [], "lag_records": 0, "halted": []}
    assert place.run("dump").stdout == ""


def test_settings_other_than_the_ledgers_are_refused_with_what_mends_them(place: Place) -> None:
    with place.writer() as writer:
        writer.claim(Slot("g", "t", 0), "a")

    place.configure(heartbeat="3s")
    refused = place.run("pause", "g", "--for", "1m")
    assert refused.returncode == GenesisMismatch.exit_code == 6
    assert 'heartbeat = "10m"' in refused.stderr

    place.configure(partitions=5)
    refused = place.run("pause", "g", "--for", "1m")
    assert refused.returncode == 6
    assert "PENSTOCK_CLAIMS_PARTITIONS=2" in refused.stderr
    # Looking does no harm: the ledger itself says what it was founded with.
    assert [one["state"] for one in place.json("ls")["slots"]] == ["fresh"]


def test_a_newer_version_in_the_log_is_told_and_never_written_behind(place: Place) -> None:
    (slot,) = slots_in(0)
    with place.writer() as writer:
        writer.claim(slot, "a")
        writer.tail.log.append(0, enveloped(b"\xc0", version=9))
        eventually(lambda: writer.tail.step(50) is None or writer.tail.fold(0).halt is not None)

    document = place.json("ls")
    assert [(one["coordination_partition"], one["offset"]) for one in document["halted"]] == [(0, 2)]
    assert [one["slot"] for one in document["slots"]] == [str(slot)]
    assert "upgrade Penstock" in place.run("ls").stderr
    refused = place.run("pause", "g", "--for", "1m")
    assert refused.returncode == 6
    assert "upgrade Penstock" in refused.stderr


def test_a_missing_coordination_topic_is_named_with_the_command_that_makes_it(place: Place) -> None:
    result = place.run("ls", "--prefix", "nowhere.")

    assert result.returncode == 3
    assert "nowhere.penstock.claims" in result.stderr
    assert "penstock topics apply" in result.stderr


def test_a_broker_that_does_not_answer_leaves_with_4(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "penstock", "claims", "ls", "-b", "127.0.0.1:1"],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_KAFKA_REQUEST_TIMEOUT": "2s"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 4, result.stderr
    assert "Traceback" not in result.stderr
