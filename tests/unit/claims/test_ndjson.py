"""Coordination records as lines of JSON, and the replay command that reads them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.claims.ndjson import line_of, read_line
from penstock.claims.records import (
    Beat,
    Claimed,
    ClaimReleased,
    ClaimsFounded,
    GroupPaused,
    Heartbeat,
    Intended,
    ProducersFenced,
    RangeAcked,
    RangeBuried,
    RangeClaimed,
    RangeFenced,
    RangeReleased,
    RangeRenewed,
    Slot,
)
from penstock.claims.state import Claims
from penstock.cli.main import penstock
from penstock.errors import UsageError
from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, VersionRaised

SLOT, LOCK = Slot("g", "t", 0), Slot("g", "nightly")
PLACE = {"group": "g", "topic": "t", "partition": 0}
ME = {"client": "A", "instance": "i1"}
AS_TOLD: list[tuple[dict[str, Any], Record]] = [
    ({"type": "claimed", **PLACE, **ME}, Claimed(SLOT, "A", "i1")),
    (
        {"type": "claimed", **PLACE, **ME, "expects": 3, "reclaim": True, "producer": "p"},
        Claimed(SLOT, "A", "i1", 3, True, "p"),
    ),
    ({"type": "claimed", "group": "g", "name": "nightly", **ME}, Claimed(LOCK, "A", "i1")),
    ({"type": "heartbeat", **PLACE, **ME, "epoch": 4, "position": 7}, Heartbeat("A", "i1", (Beat(SLOT, 4, 7),))),
    (
        {"type": "heartbeat", **PLACE, **ME, "epoch": 4, "position": None, "producer": "p", "fenced": ["q"]},
        Heartbeat("A", "i1", (Beat(SLOT, 4, None, "p", ("q",)),)),
    ),
    (
        {"type": "claim_released", **PLACE, **ME, "epoch": 4, "position": 7},
        ClaimReleased(SLOT, "A", "i1", 4, 7),
    ),
    (
        {"type": "claim_released", **PLACE, **ME, "epoch": 4, "position": 7, "reset": True, "fenced": ["p"]},
        ClaimReleased(SLOT, "A", "i1", 4, 7, True, ("p",)),
    ),
    ({"type": "producers_fenced", **PLACE, **ME, "ids": ["p"]}, ProducersFenced(SLOT, "A", "i1", ("p",))),
    (
        {"type": "producers_fenced", **PLACE, **ME, "ids": ["p"], "epoch": 3},
        ProducersFenced(SLOT, "A", "i1", ("p",), 3),
    ),
    ({"type": "intended", **PLACE, **ME, "epoch": 4, "upto": 9}, Intended(SLOT, "A", "i1", 4, 9)),
    ({"type": "group_paused", "group": "g", "by": "ops", "until_ms": 5}, GroupPaused("g", "ops", 5)),
    ({"type": "range_claimed", **PLACE, **ME, "n": 5}, RangeClaimed(SLOT, "A", "i1", 5)),
    (
        {"type": "range_claimed", **PLACE, **ME, "n": 5, "start": 2, "producer": "p"},
        RangeClaimed(SLOT, "A", "i1", 5, 2, "p"),
    ),
    ({"type": "range_acked", **PLACE, **ME, "epoch": 4, "start": 0, "end": 2}, RangeAcked(SLOT, "A", "i1", 4, 0, 2)),
    (
        {"type": "range_released", **PLACE, **ME, "epoch": 4, "start": 0, "end": 2, "counts": False},
        RangeReleased(SLOT, "A", "i1", 4, 0, 2, False),
    ),
    ({"type": "range_buried", **PLACE, **ME, "epoch": 4, "start": 0, "end": 1}, RangeBuried(SLOT, "A", "i1", 4, 0, 1)),
    ({"type": "range_renewed", **PLACE, **ME, "epoch": 4}, RangeRenewed(SLOT, "A", "i1", 4)),
    ({"type": "range_fenced", **PLACE, **ME, "epoch": 4}, RangeFenced(SLOT, "A", "i1", 4)),
]
MANY_SLOTS = Heartbeat("A", "i1", (Beat(SLOT, 1, 2), Beat(LOCK, 3)))
LEDGERS_OWN: list[Record] = [ClaimsFounded(1, 2, 3, 4), VersionRaised(1, "ops"), ClockReset("ops"), MANY_SLOTS]


def line(offset: int, time_ms: int, /, **record: Any) -> str:
    return json.dumps({"offset": offset, "time_ms": time_ms, "record": record})


def claim(offset: int, time_ms: int, client: str = "A", **more: Any) -> str:
    return line(offset, time_ms, type="claimed", **PLACE, client=client, instance="i1", **more)


def replay(tmp_path: Path, *lines: str, options: str = "--heartbeat-ms 60000") -> Result:
    file = tmp_path / "log.ndjson"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return CliRunner().invoke(penstock, ["claims", "replay", str(file), *options.split(), "--json"])


def documents(tmp_path: Path, *lines: str, options: str = "--heartbeat-ms 60000") -> list[dict[str, Any]]:
    result = replay(tmp_path, *lines, options=options)
    assert result.exception is None, result.exception
    return [json.loads(text) for text in result.stdout.splitlines()]


# Lines


@pytest.mark.parametrize(("told", "record"), AS_TOLD)
def test_a_line_is_read_as_the_record_it_tells_of(told: dict[str, Any], record: Record) -> None:
    read = read_line(json.dumps({"offset": 3, "time_ms": 9, "record": told}).encode(), 1)

    assert (read.offset, read.time_ms) == (3, 9)
    assert read.value == encode(record)


@pytest.mark.parametrize("record", [*(record for _, record in AS_TOLD), *LEDGERS_OWN])
def test_what_is_written_as_a_line_is_read_as_the_same_record(record: Record) -> None:
    value = encode(record)
    judged = Fold(Claims()).feed(3, 9, value)

    text = json.dumps(line_of(3, 9, value, judged)).encode()

    assert read_line(text, 1)[:3] == (3, 9, value)


@pytest.mark.parametrize("value", [None, b"", b"junk", encode(Claimed(SLOT, "A", "i1"))[:-1]])
def test_junk_survives_the_way_through_a_line(value: bytes | None) -> None:
    text = json.dumps(line_of(3, 9, value, Fold(Claims()).feed(3, 9, value))).encode()

    assert read_line(text, 1).value == value


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "5",
        "null",
        "{}",
        '{"offset": 0, "time_ms": 1}',
        '{"offset": -1, "time_ms": 1, "raw": ""}',
        '{"offset": 1.5, "time_ms": 1, "raw": ""}',
        '{"offset": true, "time_ms": 1, "raw": ""}',
        '{"offset": 0, "time_ms": "1", "raw": ""}',
        '{"offset": 0, "time_ms": 1, "raw": "not base64!"}',
        '{"offset": 0, "time_ms": 1, "raw": "ä"}',
        '{"offset": 0, "time_ms": 1, "raw": 5}',
        '{"offset": 0, "time_ms": 1, "version": "new"}',
        '{"offset": 0, "time_ms": 1, "version": 300, "record": {}}',
        '{"offset": 0, "time_ms": 100000000000000000000000, "raw": ""}',
        '{"offset": 100000000000000000000000, "time_ms": 1, "raw": ""}',
    ],
)
def test_what_is_no_line_is_an_error_that_names_the_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_line(text.encode(), 17)

    assert "line 17" in caught.value.what
    assert caught.value.next_step


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"type": "unheard_of"},
        {"type": ["claimed"]},
        {"type": "claimed"},
        {"type": "claimed", **PLACE},
        {"type": "claimed", **PLACE, **ME, "partition": "0"},
        {"type": "claimed", **PLACE, **ME, "expects": "x"},
        {"type": "heartbeat", **PLACE, **ME},
        {"type": "heartbeat", **PLACE, **ME, "epoch": 1, "fenced": "pa"},
        {"type": "range_claimed", **PLACE, **ME, "n": 10**30},
        {"type": "range_acked", **PLACE, **ME, "epoch": 1},
        "claimed",
        5,
        [1],
        None,
    ],
)
def test_a_record_that_makes_no_sense_is_junk_as_it_would_be_in_the_log(record: Any) -> None:
    text = json.dumps({"offset": 0, "time_ms": 1, "record": record}).encode()
    fold = Fold(Claims())

    judged = fold.feed(0, 1, read_line(text, 1).value)

    assert judged.record is None
    assert fold.junk_count == 1


# The command


def test_the_last_line_shows_the_state_in_the_promised_form(tmp_path: Path) -> None:
    verdict, state = documents(tmp_path, claim(0, 100_000))

    assert verdict == {"offset": 0, "verdict": "accepted", "reason": None}
    assert isinstance(state.pop("hash"), str)
    assert state == {
        "slots": {
            "g/t/0": {
                "owner": "A/i1",
                "epoch": 0,
                "position": None,
                "intent": None,
                "producers": [],
                "frontier": None,
                "ranges": [],
            }
        },
        "paused": {},
        "halted": False,
    }


def test_ranges_are_shown_with_their_state_owner_epoch_deliveries_and_burial(tmp_path: Path) -> None:
    ranged = [
        line(0, 0, type="range_claimed", **PLACE, **ME, n=5),
        line(1, 0, type="range_acked", **PLACE, **ME, epoch=0, start=3, end=5),
        line(2, 0, type="range_released", **PLACE, **ME, epoch=0, start=1, end=2, counts=True),
    ]
    shown = documents(tmp_path, *ranged, options="--heartbeat-ms 60000 --window 100 --delivery-limit 1")[-1]
    later = documents(tmp_path, *ranged, options="--heartbeat-ms 60000 --at 120000")[-1]
    taken = documents(
        tmp_path,
        *ranged,
        line(3, 0, type="range_claimed", **PLACE, client="B", instance="i1", n=5),
        options="--heartbeat-ms 60000 --delivery-limit 1",
    )[-1]

    held = {"owner": "A/i1", "epoch": 0, "deliveries": 1, "bury": False}
    left = {"owner": None, "epoch": None, "deliveries": 1, "bury": False}
    assert shown["slots"]["g/t/0"]["ranges"] == [
        {"start": 0, "end": 1, "state": "claimed", **held},
        {"start": 1, "end": 2, "state": "free", **left},
        {"start": 2, "end": 3, "state": "claimed", **held},
        {"start": 3, "end": 5, "state": "done", **left},
    ]
    assert shown["slots"]["g/t/0"]["frontier"] == 5
    assert [(r["state"], r["owner"]) for r in later["slots"]["g/t/0"]["ranges"]] == [
        ("expired", None),
        ("free", None),
        ("expired", None),
        ("done", None),
    ]
    assert taken["slots"]["g/t/0"]["ranges"][1] == {
        "start": 1,
        "end": 2,
        "state": "claimed",
        "owner": "B/i1",
        "epoch": 3,
        "deliveries": 2,
        "bury": True,
    }


def test_verdicts_say_accepted_ignored_or_unchanged_with_a_reason(tmp_path: Path) -> None:
    *verdicts, _ = documents(tmp_path, claim(0, 0), claim(1, 0), claim(2, 0, "B"))

    assert [each["verdict"] for each in verdicts] == ["accepted", "unchanged", "ignored"]
    assert verdicts[2] == {"offset": 2, "verdict": "ignored", "reason": "owned by A/i1"}


def test_the_state_is_judged_at_the_time_asked_for(tmp_path: Path) -> None:
    lines = [claim(0, 100_000), line(1, 100_000, type="group_paused", group="g", by="ops", until_ms=150_000)]

    now = documents(tmp_path, *lines)[-1]
    then = documents(tmp_path, *lines, options="--heartbeat-ms 60000 --at 220000")[-1]

    assert now["slots"]["g/t/0"]["owner"] == "A/i1"
    assert now["paused"] == {"g": {"by": "ops", "until_ms": 150_000}}
    assert then["slots"]["g/t/0"]["owner"] is None
    assert then["paused"] == {}
    assert now["hash"] == then["hash"]


def test_a_slot_that_was_only_asked_for_is_shown_as_new(tmp_path: Path) -> None:
    state = documents(tmp_path, claim(0, 0, expects=5))[-1]

    assert state["slots"]["g/t/0"]["owner"] is None
    assert state["slots"]["g/t/0"]["epoch"] == -1


def test_a_lock_is_shown_under_its_group_and_name(tmp_path: Path) -> None:
    state = documents(tmp_path, line(0, 0, type="claimed", group="g", name="nightly", **ME))[-1]

    assert state["slots"]["g/nightly"]["owner"] == "A/i1"


def test_a_lock_and_a_partition_that_read_alike_are_both_shown(tmp_path: Path) -> None:
    lock = line(1, 0, type="claimed", group="g", name="t/0", client="B", instance="i1")

    state = documents(tmp_path, claim(0, 0), lock)[-1]

    assert sorted(slot["owner"] for slot in state["slots"].values()) == ["A/i1", "B/i1"]


def test_a_genesis_in_the_dump_takes_the_place_of_the_options(tmp_path: Path) -> None:
    founded = line(0, 0, type="claims_founded", partitions=1, heartbeat_ms=10, window=5, delivery_limit=2)

    *verdicts, state = documents(tmp_path, founded, claim(1, 0), claim(2, 20, "B"), options="--at 20")

    assert [each["verdict"] for each in verdicts] == ["accepted"] * 3
    assert state["slots"]["g/t/0"]["owner"] == "B/i1"


def test_without_a_genesis_everything_is_ignored(tmp_path: Path) -> None:
    verdict, state = documents(tmp_path, claim(0, 0), options="")

    assert verdict["reason"] == "before the genesis"
    assert state["slots"]["g/t/0"]["owner"] is None


@pytest.mark.parametrize("more", [{}, {"record": {"type": "claimed", **PLACE, **ME}}])
def test_a_newer_version_halts_the_replay_and_moves_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    newer = json.dumps({"offset": 1, "time_ms": 900_000, "version": 99, **more})

    *verdicts, state = documents(tmp_path, claim(0, 0), newer, claim(2, 900_000, "B"))

    assert [each["verdict"] for each in verdicts] == ["accepted", "ignored", "ignored"]
    assert state["halted"] is True
    assert state["slots"]["g/t/0"]["owner"] == "A/i1"


def test_raw_bytes_are_judged_as_they_stand_in_the_log(tmp_path: Path) -> None:
    value = base64.b64encode(encode(Claimed(SLOT, "A", "i1"))).decode()
    raw = json.dumps({"offset": 0, "time_ms": 0, "raw": value})
    junk = json.dumps({"offset": 1, "time_ms": 130_000, "raw": base64.b64encode(b"junk").decode()})

    *verdicts, state = documents(tmp_path, raw, junk)

    assert [each["verdict"] for each in verdicts] == ["accepted", "ignored"]
    assert state["slots"]["g/t/0"]["epoch"] == 0
    assert state["slots"]["g/t/0"]["owner"] is None  # junk ticks too


def test_a_cut_log_adopts_older_epochs(tmp_path: Path) -> None:
    beat = line(100, 0, type="heartbeat", **PLACE, **ME, epoch=40, position=7)

    *verdicts, state = documents(tmp_path, claim(50, 0, "B"), beat, options="--heartbeat-ms 60000 --log-start 100")

    assert [each["offset"] for each in verdicts] == [100]
    assert state["slots"]["g/t/0"]["owner"] == "A/i1"


@pytest.mark.parametrize("at", range(6))
def test_a_snapshot_after_any_record_changes_nothing_that_is_shown(tmp_path: Path, at: int) -> None:
    lines = [
        claim(0, 0, producer="p"),
        line(1, 0, type="heartbeat", **PLACE, **ME, epoch=0, position=3, producer="p"),
        json.dumps({"offset": 2, "time_ms": 0, "raw": "AAAA"}),
        line(3, 0, type="group_paused", group="g", by="B", until_ms=500_000),
        claim(4, 130_000, "B"),
        json.dumps({"offset": 5, "time_ms": 0, "version": 99}),
        claim(6, 0),
    ]

    assert documents(tmp_path, *lines, options=f"--heartbeat-ms 60000 --snapshot-at {at}") == documents(
        tmp_path, *lines
    )


def test_offsets_must_grow(tmp_path: Path) -> None:
    result = replay(tmp_path, claim(5, 0), claim(5, 0))

    assert isinstance(result.exception, UsageError)
    assert "line 2" in result.exception.what
    assert result.stdout == ""


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    result = replay(tmp_path, claim(0, 0), "", "oops")

    assert isinstance(result.exception, UsageError)
    assert "line 3" in result.exception.what
