"""A queue's records as lines of JSON, and the replay command that reads them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import penstock
from penstock.errors import UsageError
from penstock.ledger.codec import Record, encode
from penstock.ledger.machine import ClockReset, Fold, VersionRaised
from penstock.queue.ndjson import line_of, read_line
from penstock.queue.records import (
    RECORD_TYPES,
    Acked,
    Buried,
    Copied,
    Dropped,
    Kept,
    LeaseFenced,
    Paused,
    Progressed,
    QueueFounded,
    QueuesChanged,
    Redriven,
    Released,
    Renewed,
    Resumed,
    Taken,
)
from penstock.queue.state import QueueMachine

RANGES = [[0, 2], [5, 6]]
PACKED = ((0, 2), (5, 6))
AS_TOLD: list[tuple[dict[str, Any], Record]] = [
    (
        {"type": "genesis", "version": 1, "topic_id": "x", "start": 7, "queues": ["a*"]},
        QueueFounded(1, "x", 7, ("a*",)),
    ),
    (
        {"type": "taken", "worker": "w1", "ranges": [[0, 500]], "lease_ms": 30000, "producer": None},
        Taken("w1", 0, ((0, 500),), 30_000),
    ),
    (
        {"type": "taken", "worker": "w", "request": 4, "ranges": RANGES, "lease_ms": 9, "producer": "p", "alone": True},
        Taken("w", 4, PACKED, 9, "p", True),
    ),
    ({"type": "renewed", "worker": "w1", "epochs": [1, 2]}, Renewed("w1", (1, 2))),
    ({"type": "acked", "epoch": 1, "ranges": RANGES, "ids": ["i"]}, Acked(1, PACKED, ("i",))),
    ({"type": "acked", "epoch": 1, "ranges": RANGES}, Acked(1, PACKED)),
    (
        {"type": "released", "epoch": 1, "ranges": RANGES, "delay_ms": 5, "counts": True, "error": "E"},
        Released(1, PACKED, 5, True, "E"),
    ),
    ({"type": "buried", "epoch": 1, "ranges": RANGES, "reason": "r", "error": "E"}, Buried(1, PACKED, "r", "E")),
    ({"type": "copied", "ranges": RANGES}, Copied(PACKED)),
    ({"type": "redriven", "ranges": RANGES, "by": "ops"}, Redriven(PACKED, "ops")),
    ({"type": "queues_changed", "queues": ["a"], "by": "ops"}, QueuesChanged(("a",), "ops")),
    ({"type": "lease_fenced", "epoch": 3}, LeaseFenced(3)),
    ({"type": "progressed", "epoch": 3, "offset": 4, "data": "page 7"}, Progressed(3, 4, b"page 7")),
    ({"type": "progressed", "epoch": 3, "offset": 4, "data": {"base64": "/w=="}}, Progressed(3, 4, b"\xff")),
    ({"type": "dropped", "ranges": RANGES, "reason": "purged", "by": "ops"}, Dropped(PACKED, "purged", "ops")),
    ({"type": "kept", "ranges": RANGES}, Kept(PACKED)),
    (
        {"type": "paused", "queue": "a", "until_ms": 9, "by": "ops", "reason": "r"},
        Paused("a", 9, "ops", "r"),
    ),
    ({"type": "paused", "queue": None, "until_ms": None, "by": "ops"}, Paused("all", None, "ops")),
    ({"type": "resumed", "queue": "a", "by": "ops"}, Resumed("a", "ops")),
    ({"type": "resumed"}, Resumed()),
    ({"type": "clock_reset", "by": "ops"}, ClockReset("ops")),
    ({"type": "version_raised", "v": 1, "by": "ops"}, VersionRaised(1, "ops")),
    ({"type": "version_raised", "version": 1, "by": "ops"}, VersionRaised(1, "ops")),
]


def line(offset: int, time_ms: int, /, **record: Any) -> str:
    return json.dumps({"offset": offset, "time_ms": time_ms, "record": record})


def taken(offset: int, time_ms: int, *ranges: list[int], worker: str = "w1", **more: Any) -> str:
    return line(offset, time_ms, type="taken", worker=worker, ranges=ranges, lease_ms=30_000, producer=None, **more)


def acked(offset: int, time_ms: int, epoch: int, *ranges: list[int]) -> str:
    return line(offset, time_ms, type="acked", epoch=epoch, ranges=ranges)


def in_partition(number: int, text: str) -> str:
    return json.dumps({"partition": number, **json.loads(text)})


def replay(tmp_path: Path, *lines: str, options: str = "") -> Result:
    file = tmp_path / "log.ndjson"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return CliRunner().invoke(penstock, ["queue", "replay", str(file), *options.split(), "--json"])


def documents(tmp_path: Path, *lines: str, options: str = "") -> list[dict[str, Any]]:
    result = replay(tmp_path, *lines, options=options)
    assert result.exception is None, result.exception
    return [json.loads(text) for text in result.stdout.splitlines()]


def state(tmp_path: Path, *lines: str, options: str = "") -> dict[str, Any]:
    return documents(tmp_path, *lines, options=options)[-1]["state"]  # type: ignore[no-any-return]


# Lines


@pytest.mark.parametrize(("told", "record"), AS_TOLD)
def test_a_line_is_read_as_the_record_it_tells_of(told: dict[str, Any], record: Record) -> None:
    read = read_line(json.dumps({"offset": 3, "time_ms": 9, "record": told}).encode(), 1)

    assert (read.offset, read.time_ms) == (3, 9)
    assert read.value == encode(record)


@pytest.mark.parametrize("record", [record for _, record in AS_TOLD])
def test_what_is_written_as_a_line_is_read_as_the_same_record(record: Record) -> None:
    value = encode(record)

    text = json.dumps(line_of(3, 9, value, Fold(QueueMachine()).feed(3, 9, value))).encode()

    assert read_line(text, 1) == (3, 9, value)


def test_every_kind_of_record_has_a_line() -> None:
    assert {type(record) for _, record in AS_TOLD} >= set(RECORD_TYPES)


@pytest.mark.parametrize("value", [None, b"", b"junk", encode(Copied(((0, 1),)))[:-1]])
def test_junk_survives_the_way_through_a_line(value: bytes | None) -> None:
    text = json.dumps(line_of(3, 9, value, Fold(QueueMachine()).feed(3, 9, value))).encode()

    assert read_line(text, 1).value == value


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "null",
        "{}",
        '{"offset": 0, "time_ms": 1}',
        '{"offset": -1, "time_ms": 1, "raw": ""}',
        '{"offset": 1.5, "time_ms": 1, "raw": ""}',
        '{"offset": true, "time_ms": 1, "raw": ""}',
        '{"offset": 1, "time_ms": 1, "raw": "%"}',
        '{"offset": 1, "time_ms": 1, "version": 256}',
    ],
)
def test_what_is_no_line_of_a_dump_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="line 7 is no line of a dump"):
        read_line(text.encode(), 7)


@pytest.mark.parametrize(
    "record",
    [
        None,
        5,
        {},
        {"type": "unheard_of"},
        {"type": "taken"},
        {"type": "taken", "worker": "w", "ranges": [[0]], "lease_ms": 1},
        {"type": "taken", "worker": "w", "ranges": [[0, "1"]], "lease_ms": 1},
        {"type": "acked", "epoch": "0", "ranges": [[0, 1]]},
        {"type": "progressed", "epoch": 0, "offset": 0, "data": 5},
        {"type": "progressed", "epoch": 0, "offset": 0, "data": {"base64": "%"}},
    ],
)
def test_a_record_that_makes_no_sense_is_junk(tmp_path: Path, record: Any) -> None:
    text = json.dumps({"offset": 0, "time_ms": 5, "record": record})

    [verdict, last] = documents(tmp_path, text)

    assert verdict["verdict"] == "ignored"
    assert last["state"]["clock_ms"] == 5


# Replay


def test_the_first_lease_of_a_file_without_a_genesis_begins_at_0(tmp_path: Path) -> None:
    [verdict, last] = documents(tmp_path, taken(0, 1_000, [0, 500]))

    assert verdict == {"offset": 0, "verdict": "accepted", "reason": None, "covered": [[0, 500]]}
    assert {name: last["state"][name] for name in ("clock_ms", "position", "finished", "halted", "paused")} == {
        "clock_ms": 1_000,
        "position": 0,
        "finished": [],
        "halted": False,
        "paused": {},
    }
    [lease] = last["state"]["leases"]
    assert lease == {
        "epoch": 0,
        "worker": "w1",
        "ranges": [[0, 500]],
        "attempt": 1,
        "expires_ms": 31_000,
        "expired": False,
        "producer": None,
        "alone": False,
    }


def test_a_genesis_in_the_file_is_taken_and_what_stands_before_it_is_not(tmp_path: Path) -> None:
    genesis = line(1, 1, type="genesis", version=1, topic_id="t", start=7, queues=["a"])

    shown = documents(tmp_path, taken(0, 0, [0, 9]), genesis, taken(2, 2, [0, 9]))

    assert [one["verdict"] for one in shown[:-1]] == ["ignored", "accepted", "partial"]
    assert shown[2]["covered"] == [[7, 9]]
    assert shown[-1]["state"]["position"] == 7


def test_a_state_is_judged_at_the_time_that_is_asked_for(tmp_path: Path) -> None:
    lines = (
        taken(0, 1_000, [0, 5]),
        line(1, 1_000, type="paused", queue="all", until_ms=5_000, by="ops", reason="why"),
    )

    early, late = (state(tmp_path, *lines, options=f"--at {at_ms}") for at_ms in (4_999, 31_000))

    assert [one["leases"][0]["expired"] for one in (early, late)] == [False, True]
    assert early["paused"] == {"all": {"by": "ops", "until_ms": 5_000, "reason": "why"}}
    assert late["paused"] == {}
    assert early["hash"] == late["hash"]


def test_everything_that_is_known_is_in_the_state(tmp_path: Path) -> None:
    shown = state(
        tmp_path,
        taken(0, 0, [0, 10]),
        acked(1, 1, 0, [0, 1], [3, 5]),
        line(2, 2, type="released", epoch=0, ranges=[[5, 6]], delay_ms=5_000, counts=True, error="E"),
        line(3, 3, type="buried", epoch=0, ranges=[[6, 8]], reason="poison", error="trace"),
        line(4, 4, type="copied", ranges=[[7, 8]]),
        line(5, 5, type="progressed", epoch=0, offset=1, data="page 7"),
        line(6, 5, type="kept", ranges=[[1, 2]]),
        taken(7, 30_000, [1, 2], worker="w2"),
    )

    assert (shown["position"], shown["finished"]) == (1, [[3, 5], [7, 8]])
    assert [(one["epoch"], one["worker"], one["ranges"]) for one in shown["leases"]] == [(7, "w2", [[1, 2]])]
    assert shown["waiting"] == [{"ranges": [[5, 6]], "due_ms": 5_002, "attempt": 2}]
    assert shown["losses"] == [{"ranges": [[1, 3], [8, 10]], "losses": 1}]
    [owed] = shown["to_copy"]
    assert (owed["ranges"], owed["attempts"], owed["reason"], owed["error"]) == ([[6, 7]], 1, "poison", "trace")
    assert shown["dead"] == [[7, 8]]
    assert shown["kept"] == [[1, 2]]
    assert shown["progress"] == [{"offset": 1, "data": "page 7"}]


def test_a_lease_whose_offsets_differ_in_their_attempt_is_told_for_each(tmp_path: Path) -> None:
    released = line(1, 1, type="released", epoch=0, ranges=[[1, 2]], counts=True)

    shown = state(tmp_path, taken(0, 0, [0, 3]), released, acked(2, 2, 0, [0, 3]), taken(3, 3, [1, 5], worker="w2"))

    assert [(one["epoch"], one["attempt"], one["ranges"]) for one in shown["leases"]] == [
        (3, 1, [[3, 5]]),
        (3, 2, [[1, 2]]),
    ]


def test_a_newer_version_ends_the_fold(tmp_path: Path) -> None:
    newer = json.dumps({"offset": 1, "time_ms": 9, "version": 99})

    shown = documents(tmp_path, taken(0, 1, [0, 5]), newer, acked(2, 10, 0, [0, 5]))

    assert [one["verdict"] for one in shown[:-1]] == ["accepted", "ignored", "ignored"]
    assert (shown[-1]["state"]["halted"], shown[-1]["state"]["clock_ms"]) == (True, 1)


def test_raw_bytes_are_judged_as_they_are(tmp_path: Path) -> None:
    raw = base64.b64encode(encode(Taken("w1", 0, ((0, 5),), 9))).decode()

    shown = documents(
        tmp_path, json.dumps({"offset": 0, "time_ms": 1, "raw": raw}), '{"offset":1,"time_ms":2,"raw":null}'
    )

    assert [one["verdict"] for one in shown[:-1]] == ["accepted", "ignored"]


LONG = (
    taken(0, 0, [0, 10]),
    acked(1, 1, 0, [2, 4]),
    line(2, 2, type="released", epoch=0, ranges=[[4, 6]], delay_ms=10, counts=True),
    line(3, 3, type="buried", epoch=0, ranges=[[6, 7]], reason="poison"),
    taken(4, 31_000, [0, 5], worker="w2"),
    acked(5, 31_001, 0, [7, 10]),
    line(6, 31_002, type="copied", ranges=[[6, 7]]),
    acked(7, 31_003, 4, [0, 5]),
)


@pytest.mark.parametrize("at", range(8))
def test_a_snapshot_at_any_record_and_the_tail_give_the_same(tmp_path: Path, at: int) -> None:
    whole = documents(tmp_path, *LONG)

    assert documents(tmp_path, *LONG, options=f"--snapshot-at {at}") == whole
    fold = Fold(QueueMachine())
    fold.found(QueueFounded(1, "", 0, ()))
    for text in LONG[: at + 1]:
        fold.feed(*read_line(text.encode(), 1))
    snapshot = json.dumps({"offset": at, "time_ms": 0, "snapshot": base64.b64encode(fold.dump()).decode()})
    assert documents(tmp_path, snapshot, *LONG[at + 1 :]) == whole[at + 1 :]
    assert documents(tmp_path, snapshot, *LONG[at + 1 :], options=f"--log-start {at + 1}") == whole[at + 1 :]


def test_a_log_that_was_cut_without_a_snapshot_is_never_an_empty_state(tmp_path: Path) -> None:
    shown = documents(tmp_path, *LONG, options="--log-start 4")

    assert [(one["offset"], one["verdict"]) for one in shown[:-1]] == [(n, "ignored") for n in range(4, 8)]
    assert shown[-1]["state"]["halted"] is True


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([taken(1, 0, [0, 1]), taken(1, 0, [0, 1])], "offset 1 comes after 1"),
        ([in_partition(0, taken(0, 0, [0, 1])), in_partition(1, taken(0, 0, [0, 1]))], "another partition: 1"),
        (['{"offset": 0, "time_ms": 1, "snapshot": "AAAA"}'], "offset 0 holds no snapshot of a queue"),
        (['{"offset": 0, "time_ms": 1, "snapshot": "%"}'], "line 1 holds no snapshot of a queue"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_refused(tmp_path: Path, lines: list[str], what: str) -> None:
    problem = replay(tmp_path, *lines).exception

    assert isinstance(problem, UsageError)
    assert what in problem.what


def test_one_partition_of_a_dump_of_several_is_chosen(tmp_path: Path) -> None:
    two = [in_partition(number, taken(0, number, [0, 1])) for number in range(2)]

    assert state(tmp_path, *two, options="--partition 1")["clock_ms"] == 1


def test_people_read_a_table(tmp_path: Path) -> None:
    file = tmp_path / "log.ndjson"
    file.write_text("\n".join(LONG))

    shown = CliRunner().invoke(penstock, ["queue", "replay", str(file)]).stdout

    assert "that lease is over" in shown
    assert "position  5" in shown


def test_people_see_which_leases_have_expired_who_was_lost_and_what_is_paused(tmp_path: Path) -> None:
    file = tmp_path / "log.ndjson"
    lost = [taken(0, 1_000, [0, 2]), taken(1, 40_000, [0, 1])]
    pause = {"offset": 2, "time_ms": 40_000, "record": {"type": "paused", "queue": "orders", "by": "ann"}}
    file.write_text("\n".join([*lost, json.dumps(pause)]))

    shown = CliRunner().invoke(penstock, ["queue", "replay", str(file), "--at", "90000"]).stdout

    assert [line.split()[0] for line in shown.splitlines() if line.endswith("expired")] == ["1"]
    assert "losses    0-2 (1)" in shown
    assert "paused    orders by ann" in shown
