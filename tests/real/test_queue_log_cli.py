"""`penstock queue dump` on a real broker: what it writes down replays to the same state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from real_kafka import append, settings_for, unique

from penstock.broker import Embedded
from penstock.ledger.codec import Record, encode
from penstock.ledger.topics import make_ledger
from penstock.queue.records import Acked, Buried, QueueFounded, Released, Taken
from penstock.values import TopicPartition

RECORDS: tuple[Record, ...] = (
    QueueFounded(1, "t", 0, ("orders",)),
    Taken("w1", 1, ((0, 500),), 30_000),
    Acked(1, ((0, 400),), ("id-1",)),
    Released(1, ((400, 401),), 60_000, True, "E"),
    Buried(1, ((401, 402),), "poison", "trace"),
)


def run(broker: Embedded, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "queue", *arguments]
    connected = ["-b", broker.bootstrap] if arguments[0] == "dump" else []
    return subprocess.run([*command, *connected], capture_output=True, text=True, timeout=120, check=False, cwd=folder)


def test_a_dumped_ledger_replays_verdict_by_verdict(penstock_broker: Embedded, tmp_path: Path) -> None:
    settings, group = settings_for(penstock_broker.bootstrap), unique("shop")
    ledger = f"orders.{group}.ledger"
    make_ledger(settings, ledger, partitions=2)
    append(settings, TopicPartition(ledger, 1), *map(encode, RECORDS), b"junk")

    dumped = run(penstock_broker, tmp_path, "dump", "orders", "--group", group)

    assert dumped.returncode == 0, dumped.stderr
    (tmp_path / "log.ndjson").write_text(dumped.stdout)
    lines = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [(line["partition"], line["offset"]) for line in lines] == [(1, number) for number in range(6)]
    replayed = run(penstock_broker, tmp_path, "replay", "log.ndjson", "--json")
    *verdicts, last = map(json.loads, replayed.stdout.splitlines())
    assert [verdict["verdict"] for verdict in verdicts] == ["accepted"] * 5 + ["ignored"]
    assert last["state"]["position"] == 400
    assert [one["ranges"] for one in last["state"]["to_copy"]] == [[[401, 402]]]
    assert run(penstock_broker, tmp_path, "dump", "orders", "--group", group, "--partition", "2").returncode == 3
    assert run(penstock_broker, tmp_path, "dump", "orders", "--group", "nobody").returncode == 3
