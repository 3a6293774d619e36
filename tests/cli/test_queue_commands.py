"""`penstock send`, `queues` and `peek` on a real broker: what they print is a contract, and looking writes nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from real_kafka import append, eventually

from penstock.broker import Embedded
from penstock.claims.dead_letters import DeadLetters
from penstock.cli.main import main
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.ledger.codec import Record, enveloped
from penstock.ledger.kafka_log import open_ledger
from penstock.ledger.tail import Tail, Ticket, monotonic_ms
from penstock.ledger.topics import make_ledger
from penstock.queue.delays import with_delays
from penstock.queue.look import QueueSeen, Shown, queues_seen
from penstock.queue.names import ledger_topic
from penstock.queue.records import (
    Acked,
    Buried,
    Copied,
    Paused,
    QueueFounded,
    Redriven,
    Released,
    Taken,
)
from penstock.queue.sending import Sender
from penstock.queue.state import QueueMachine
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

NOBODY = "127.0.0.1:1"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, stdin: bytes = b"") -> Done:
    """The command in this process, which saves the start of another; as one of its own it is tried once, below."""
    out, err = io.StringIO(), io.StringIO()
    on_term = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main(arguments)
    signal.signal(signal.SIGTERM, on_term)
    assert isinstance(end.value.code, int)
    return Done(end.value.code, out.getvalue(), err.getvalue())


class Place:
    """Topics of its own, and a folder from which the commands find them."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.name = f"q{uuid.uuid4().hex[:8]}"
        self.settings = Settings(kafka=KafkaSettings(bootstrap_servers=bootstrap), topic_prefix=f"{self.name}-own.")
        (folder / "penstock.toml").write_text(
            f"topic_prefix = '{self.settings.topic_prefix}'\n[kafka]\nbootstrap_servers = '{bootstrap}'\n"
        )

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        return run(*arguments, stdin=stdin)

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def topic(self, suffix: str = "", *, partitions: int = 1) -> str:
        name = self.name + suffix
        with Admin(self.settings.kafka) as admin:
            admin.create([TopicSpec(name=name, partitions=partitions, config={}, reason="a test")])
        return name

    def ledger(self, topic: str, group: str = "shop", *, partitions: int = 1) -> str:
        ledger = ledger_topic(self.settings, topic=topic, group=group)
        make_ledger(self.settings.kafka, ledger, partitions=partitions)
        return ledger

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        append(self.settings.kafka, TopicPartition(topic, partition), *values)

    def write(self, ledger: str, *records: Record, partition: int = 0) -> list[int]:
        """Append to the ledger, each when the one before it was read back; their offsets."""
        log, snapshots = open_ledger(self.settings.kafka, ledger)
        tail = Tail(
            log,
            snapshots,
            machine=QueueMachine,
            instance=uuid.uuid4().hex,
            monotonic_ms=monotonic_ms,
            fresh_ms=1_000,
            snapshot_every=10**9,
        )
        try:
            tail.follow([partition])
            return [self._write(tail, tail.append(partition, record)) for record in records]
        finally:
            tail.close()

    def _write(self, tail: Tail[QueueMachine], ticket: Ticket) -> int:
        eventually(lambda: tail.step(50) is None or ticket.verdict is not None)
        assert ticket.offset is not None
        return ticket.offset

    def founded(self, topic: str, **fields: Any) -> QueueFounded:
        with Admin(self.settings.kafka) as admin:
            topic_id = admin.describe([topic])[topic].topic_id
        return QueueFounded(**{"version": 1, "topic_id": topic_id, "start": 0, "queues": (topic,), **fields})

    def bury(self, topic: str, *offsets: int, group: str = "shop", error: str = "") -> None:
        letters = DeadLetters(self.settings, group=group)
        with Reader(self.settings.kafka) as reader:
            for offset in offsets:
                record = reader.read_at(TopicPartition(topic, 0), offset)
                assert record is not None
                letters.bury([record], reason="attempts used up", error=error, attempts=5)
        letters.close()

    def ends(self, *topics: str) -> list[int]:
        with Admin(self.settings.kafka) as admin:
            return [admin.bounds([TopicPartition(name, 0)])[TopicPartition(name, 0)].end for name in topics]


@pytest.fixture
def place(penstock_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path, penstock_broker.bootstrap)
    yield place
    with Admin(place.settings.kafka) as admin:
        admin.delete(name for name in admin.names() if name.startswith(place.name))


@pytest.fixture
def busy(place: Place) -> str:
    """A topic of ten messages: 0 acked, 1 to 3 leased, 4 waiting, 5 buried, 6 dead, 7 redriven, 8 and 9 untouched."""
    topic = place.topic()
    ledger = place.ledger(topic)
    place.send(topic, *(b'{"order": %d}' % number for number in range(10)))
    epoch = place.write(ledger, place.founded(topic), Taken("w1", 1, ((0, 8),), 3_600_000))[-1]
    place.write(
        ledger,
        Acked(epoch, ((0, 1),)),
        Released(epoch, ((4, 5),), 3_600_000, True, "shop.CardDeclined: no money\n  File shop.py"),
        Buried(epoch, ((5, 8),), "attempts used up", "shop.CardDeclined: never"),
    )
    place.bury(topic, 6, 7, error="shop.CardDeclined: never")
    place.write(ledger, Copied(((6, 8),)), Redriven(((7, 8),)))
    return topic


# send


def test_send_prints_the_id_and_the_message_is_in_the_topic(place: Place) -> None:
    topic = place.topic()

    plain = place.run("send", topic, "hello", "--key", "customer-7", "--header", "tenant=acme", "--header", "a=b=c")
    told = place.json("send", topic, "again", "--id", "order-1")

    assert plain.returncode == 0, plain.stderr
    assert told == {"id": "order-1", "queue": topic, "topic": topic, "partition": 0, "offset": 1}
    with Reader(place.settings.kafka) as reader:
        first, second = reader.ranges(TopicPartition(topic, 0), [(0, 2)])
    assert (first.value(), first.key(), second.value()) == (b"hello", b"customer-7", b"again")
    headers = dict(first.headers() or [])
    assert headers == {"penstock-id": plain.stdout.strip().encode(), "tenant": b"acme", "a": b"b=c"}


@pytest.mark.parametrize("value", [["-"], []], ids=["named", "not named"])
def test_every_line_of_standard_input_is_a_message(place: Place, value: list[str]) -> None:
    topic = place.topic()

    command = [sys.executable, "-m", "penstock", "send", topic, *value, "--lines", "--json"]
    done = subprocess.run(command, input=b"one\r\ntwo\n\nthree", capture_output=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 2, 3]
    assert len({line["id"] for line in lines}) == 4
    with Reader(place.settings.kafka) as reader:
        found = [record.value() for record in reader.ranges(TopicPartition(topic, 0), [(0, 4)])]
    assert found == [b"one", b"two", b"", b"three"]
    assert b"4 messages are in" in done.stderr


def test_a_file_is_one_message_and_count_sends_it_more_often(place: Place) -> None:
    topic = place.topic()
    (place.folder / "order.bin").write_bytes(b"\x00\xff\n\n")

    done = place.run("send", topic, "--file", "order.bin", "--count", "3")

    assert (done.returncode, len(set(done.stdout.split()))) == (0, 3)
    with Reader(place.settings.kafka) as reader:
        found = [record.value() for record in reader.ranges(TopicPartition(topic, 0), [(0, 3)])]
    assert found == [b"\x00\xff\n\n"] * 3


def test_a_topic_is_made_only_if_that_is_asked_for(place: Place) -> None:
    refused = place.run("send", place.name, "hello")
    told = place.json("send", place.name, "hello", "--make")

    assert (refused.returncode, refused.stdout) == (3, "")
    assert f"there is no queue {place.name}" in refused.stderr
    assert "--make" in refused.stderr
    assert told["offset"] == 0


def test_delay_and_ttl_are_headers_of_the_message(place: Place) -> None:
    topic = place.topic()

    place.json("send", topic, "later", "--at", "2031-05-01T08:00:00Z", "--ttl", "1h")

    with Reader(place.settings.kafka) as reader:
        record = reader.read_at(TopicPartition(topic, 0), 0)
    assert record is not None
    headers = dict(record.headers() or [])
    assert headers["penstock-due-ms"] == b"1935388800000"
    assert headers["penstock-expires-ms"] == b"1935392400000"


WRONG = [
    [],
    ["value", "--file", "penstock.toml"],
    ["value", "--lines"],
    ["value", "--header", "no-value"],
    ["value", "--header", "penstock-id=mine"],
    ["value", "--at", "tomorrow"],
    ["value", "--at", "2031-05-01T08:00:00"],
    ["value", "--delay", "1m", "--at", "2031-05-01T08:00:00Z"],
    ["value", "--delay", "soon"],
    ["value", "--count", "2", "--id", "one"],
    ["value", "--id", ""],
]


def test_what_cannot_be_sent_is_said_with_exit_2_and_nothing_is_sent(place: Place) -> None:
    topic = place.topic()

    for arguments in WRONG:
        done = place.run("send", topic, *arguments)

        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert "error: " in done.stderr, arguments
        assert "next:  " in done.stderr, arguments
    assert place.ends(topic) == [0]


def test_what_was_sent_before_a_line_that_is_too_long_is_told(place: Place) -> None:
    topic = place.topic()

    done = place.run("send", topic, "-", "--lines", stdin=b"one\ntwo\n" + b"x" * 1_000_001 + b"\nfour\n")

    assert (done.returncode, len(done.stdout.split())) == (2, 2)
    assert "message 3: a payload of 1000001 bytes" in done.stderr
    assert place.ends(topic) == [2]


# queues


def test_queues_counts_messages_by_state(place: Place, busy: str) -> None:
    document = place.json("queues", "--group", "shop")

    [one] = [one for one in document["queues"] if one["queue"] == busy]
    assert 0 < one.pop("oldest_age_ms") < 120_000
    assert one == {
        "queue": busy,
        "topic": busy,
        "group": "shop",
        "ledger": f"{place.settings.topic_prefix}{busy}.shop.ledger",
        "ready": 2,
        "leased": 3,
        "waiting": 1,
        "to_copy": 1,
        "dead": 1,
        "unread": 0,
        "lag_records": 9,
        "partitions": 1,
        "serves": [busy],
        "workers": ["w1"],
        "paused": {},
        "halted": {},
        "problem": None,
    }


def test_messages_that_were_sent_with_a_delay_are_waiting_as_far_as_somebody_looks(
    place: Place, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sender(place.settings.kafka, busy) as sender:
        sender.send_many([b"1", b"2", b"3"], delay="1h")
        sender.send_many([b"4"], at=0)
        sender.send_many([b"5"])
    [whole] = [one for one in place.json("queues")["queues"] if one["queue"] == busy]
    monkeypatch.setattr("penstock.queue.delays.LOOK_MAX", 4)
    [part] = queues_with_delays(place, busy)

    assert (whole["ready"], whole["waiting"], whole["unread"]) == (4, 4, 0)
    # Two of the four that were looked at were there before, and wait for nothing.
    assert (part.count(Shown.READY), part.count(Shown.WAITING), part.unread) == (5, 3, 3)


def queues_with_delays(place: Place, topic: str) -> list[QueueSeen]:
    now_ms = time.time_ns() // 1_000_000
    seen = with_delays(place.settings, queues_seen(place.settings, now_ms), now_ms)
    return [one for one in seen if one.named.topic == topic]


def test_looking_writes_nothing(place: Place, busy: str) -> None:
    ledger = ledger_topic(place.settings, topic=busy, group="shop")
    topics = [busy, ledger, f"{ledger}.snapshots", f"{place.settings.topic_prefix}{busy}.shop.dead"]
    before = place.ends(*topics)

    place.json("queues")
    for state in ("ready", "leased", "waiting", "dead"):
        place.json("peek", busy, "--state", state)

    assert place.ends(*topics) == before
    with Admin(place.settings.kafka) as admin:
        assert place.name not in "".join(admin.groups())


def test_the_table_of_queues_says_what_is_wrong_with_one(place: Place, busy: str) -> None:
    ledger = ledger_topic(place.settings, topic=busy, group="shop")
    place.write(ledger, Paused("all", None, "ann", "a broken card reader"))
    gone = place.topic("-gone")
    place.write(place.ledger(gone), place.founded(gone))
    halted = place.topic("-halted")
    append(place.settings.kafka, TopicPartition(place.ledger(halted), 0), enveloped(b"\x90", version=9))
    with Admin(place.settings.kafka) as admin:
        admin.delete([gone])

    done = place.run("queues")

    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["queue"] == ["group", "ready", "leased", "waiting", "to", "copy", "dead", "oldest", "lag"]
    assert rows[busy][:6] == ["shop", "2", "3", "1", "1", "1"]
    assert rows[gone] == ["shop", *["-"] * 7]
    assert f"{busy} (shop): all is paused by ann: a broken card reader" in done.stderr
    assert f"{gone} (shop): topic {gone} is gone" in done.stderr
    assert f"{halted} (shop): partition 0 has halted: " in done.stderr


def test_names_with_dots_are_told_apart_by_the_topic_that_the_ledger_was_founded_for(place: Place) -> None:
    short, long = place.topic(), place.topic(".eu")
    place.write(place.ledger(short, "eu.shop"), place.founded(long))
    place.write(place.ledger(short, "eu.bar"), place.founded(short))

    found = {(one["queue"], one["group"]) for one in place.json("queues")["queues"]}

    assert found == {(long, "shop"), (short, "eu.bar")}


def test_a_topic_that_was_made_anew_is_not_judged_by_its_old_ledger(place: Place, busy: str) -> None:
    with Admin(place.settings.kafka) as admin:
        admin.delete([busy])
    place.topic()

    [one] = place.json("queues")["queues"]

    assert (one["ready"], one["dead"], one["lag_records"]) == (None, None, None)
    assert "deleted and made anew" in one["problem"]
    assert place.run("peek", busy).returncode == 6


def test_a_lease_that_has_run_out_and_a_delay_that_has_passed_count_as_ready(place: Place) -> None:
    topic = place.topic(partitions=2)
    ledger = place.ledger(topic, partitions=2)
    place.send(topic, b"a", b"b", b"c", partition=1)
    epoch = place.write(ledger, place.founded(topic), Taken("w1", 1, ((0, 2),), 1), partition=1)[-1]
    place.write(ledger, Released(epoch, ((1, 2),), 1, True, "no"), partition=1)

    def states() -> list[Any]:
        [one] = place.json("queues")["queues"]
        return [one[state] for state in ("ready", "leased", "waiting", "workers")]

    eventually(lambda: states() == [3, 0, 0, []])  # a millisecond after they were written


def test_no_queue_is_no_error_but_an_unknown_group_is_3(place: Place) -> None:
    assert place.json("queues") == {"queues": []}
    assert place.run("queues").stderr == "no queue has a ledger yet: a worker makes it\n"
    assert place.run("queues", "--group", "nobody").returncode == 3


# peek


def test_peek_shows_the_leased_ones_with_their_lease(place: Place, busy: str) -> None:
    document = place.json("peek", busy, "--group", "shop", "--state", "leased", "--limit", "2")

    messages = document.pop("messages")
    assert document == {
        "queue": busy,
        "topic": busy,
        "group": "shop",
        "state": "leased",
        "more": True,
        "missing": 0,
        "halted": {},
    }
    assert [message["offset"] for message in messages] == [1, 2]
    first = messages[0]
    assert first.pop("time_ms") > 0
    assert first["lease"].pop("expires_ms") > time.time() * 1_000
    assert first == {
        "partition": 0,
        "offset": 1,
        "id": f"{busy}/0/1",
        "key": None,
        "key_format": None,
        "attempt": 1,
        "losses": 0,
        "due_ms": None,
        "expires_ms": None,
        "lease": {"epoch": 1, "worker": "w1"},
        "reason": None,
        "error": None,
        "headers": [],
        "size_bytes": 12,
        "value": '{"order": 1}',
        "value_format": "text",
        "is_cut": False,
    }


def test_peek_shows_what_waits_with_its_time_and_the_error(place: Place, busy: str) -> None:
    place.json("send", busy, "later", "--delay", "1h", "--id", "delayed")

    document = place.json("peek", busy, "--state", "waiting")
    ready = place.json("peek", busy)

    assert [message["id"] for message in document["messages"]] == [f"{busy}/0/4", "delayed"]
    assert [message["attempt"] for message in document["messages"]] == [2, 1]
    assert all(message["due_ms"] > time.time() * 1_000 for message in document["messages"])
    assert document["messages"][0]["error"].startswith("shop.CardDeclined: no money")
    assert [message["offset"] for message in ready["messages"]] == [8, 9]
    assert ready["more"] is False


def test_peek_shows_the_dead_ones_that_were_not_redriven(place: Place, busy: str) -> None:
    document = place.json("peek", busy, "--state", "dead")

    [letter] = document["messages"]
    assert (letter["partition"], letter["offset"], letter["attempt"]) == (0, 6, 5)
    assert (letter["reason"], letter["error"]) == ("attempts used up", "shop.CardDeclined: never")
    assert (letter["id"], letter["value"]) == (f"{busy}/0/6", '{"order": 6}')
    assert (document["more"], document["missing"]) == (False, 0)


def test_the_table_is_one_line_for_each_and_cannot_steer_the_terminal(place: Place) -> None:
    topic = place.topic()
    place.ledger(topic)
    place.send(topic, b"\x1b[31mred\x1b[0m\nline", b"\xff\x00", b"x" * 500, "ü".encode() * 300)

    done = place.run("peek", topic)

    assert done.returncode == 0, done.stderr
    _, red, binary, long, umlauts = map(str.rstrip, done.stdout.splitlines())
    assert red.endswith(r"\x1b[31mred\x1b[0m\nline")
    assert binary.endswith(" ff00")
    assert long.endswith(" " + "x" * 59 + "…")
    assert umlauts.endswith("ü…")


def test_a_long_value_is_cut_and_a_foreign_one_is_in_hexadecimal_digits(place: Place) -> None:
    topic = place.topic()
    place.ledger(topic)
    place.send(topic, "ü".encode() * 3, b"\xffabc", b"")

    messages = place.json("peek", topic, "--bytes", "3")["messages"]

    told = [(one["value"], one["value_format"], one["size_bytes"], one["is_cut"]) for one in messages]
    assert told == [("ü", "text", 6, True), ("ff6162", "hex", 4, True), ("", "text", 0, False)]


def test_the_group_may_be_left_out_if_there_is_one_only(place: Place, busy: str) -> None:
    assert place.json("peek", busy)["group"] == "shop"
    place.ledger(busy, "billing")

    done = place.run("peek", busy)

    assert done.returncode == 2
    assert "is consumed by billing, shop" in done.stderr


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "--group", "shop"]], ids=" ".join)
def test_peek_of_an_unknown_queue_is_3(place: Place, arguments: list[str]) -> None:
    done = place.run("peek", *arguments)

    assert (done.returncode, done.stdout) == (3, "")
    assert "there is no queue nowhere" in done.stderr


def test_peek_of_an_unknown_group_is_3(place: Place, busy: str) -> None:
    done = place.run("peek", busy, "--group", "nobody")

    assert (done.returncode, done.stdout) == (3, "")
    assert f"queue {busy} is consumed by no group nobody" in done.stderr


@pytest.mark.parametrize("arguments", [["send", "orders", "x"], ["queues"], ["peek", "orders"]], ids=" ".join)
def test_a_broker_that_is_not_there_is_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_KAFKA_REQUEST_TIMEOUT", "500ms")

    done = run(*arguments, "-b", NOBODY)

    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "next:  " in done.stderr
