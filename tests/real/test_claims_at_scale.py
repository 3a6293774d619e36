"""Whole groups as processes: restarted one after the other, without a broker for a while, and fifty members at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from real_kafka import eventually

from penstock.bench.claims_member import MemberProcess
from penstock.bench.ground import Ground
from penstock.broker import Embedded
from penstock.kafka.topics import Admin
from penstock.kafka.writer import Writer
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import TopicPartition, duration

PARTITIONS = 6


@contextmanager
def group_on(broker: Embedded) -> Iterator[tuple[Settings, str]]:
    """A topic and a coordination ledger of its own."""
    with Ground(KafkaSettings(bootstrap_servers=broker.bootstrap)) as ground:
        yield ground.settings(heartbeat="500ms", partitions=2), ground.topic("orders", partitions=PARTITIONS)


def member(settings: Settings, topic: str, client: str) -> MemberProcess:
    return MemberProcess.started(settings, topic=topic, client=client, share="partitions", batch_max=500)


def handed_out(members: list[MemberProcess]) -> Counter[tuple[int, int]]:
    return Counter(
        (each.partition, offset)
        for one in members
        for each in list(one.handed)
        for offset in range(each.start, each.end)
    )


def written(settings: Settings, topic: str) -> set[tuple[int, int]]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Admin(settings.kafka) as admin:
        return {
            (place.partition, offset)
            for place, at in admin.bounds(places).items()
            for offset in range(at.start, at.end)
        }


def test_a_rolling_restart_of_all_members_loses_nothing_and_repeats_nothing(penstock_broker: Embedded) -> None:
    with group_on(penstock_broker) as (settings, topic):
        living = [member(settings, topic, f"m{number}") for number in range(3)]
        everybody = list(living)
        ground = Ground(settings.kafka)
        try:
            with ground.fed(topic, partitions=PARTITIONS, per_s=1_000, value=b"order"):
                eventually(lambda: all(one.handed for one in living), within_s=60)
                for number in range(3):
                    living[number].end()
                    assert living[number].process.returncode == 0
                    living[number] = member(settings, topic, f"m{number}")
                    everybody.append(living[number])
                    eventually(lambda one=living[number]: one.handed, within_s=60)
            sent = written(settings, topic)
            eventually(lambda: set(handed_out(everybody)) >= sent, within_s=60)
        finally:
            for one in everybody:
                one.end()
        seen = handed_out(everybody)
        assert set(seen) == sent
        assert [place for place, times in seen.items() if times > 1] == []


def test_members_go_on_by_themselves_when_the_broker_was_away(tmp_path: Path) -> None:
    with Embedded(data=tmp_path / "broker") as broker, group_on(broker) as (settings, topic):
        members = [member(settings, topic, f"m{number}") for number in range(2)]
        try:
            _send(settings, topic, 600)
            eventually(lambda: set(handed_out(members)) >= written(settings, topic), within_s=60)
            eventually(lambda: all(one.handed for one in members) or _send(settings, topic, 60), within_s=60)
            broker.kill(1)
            broker.start(1)
            _send(settings, topic, 600)
            eventually(lambda: set(handed_out(members)) >= written(settings, topic), within_s=90)
            assert [one.process.poll() for one in members] == [None, None]
        finally:
            for one in members:
                one.end()


def _send(settings: Settings, topic: str, count: int) -> None:
    with Writer(settings.kafka) as writer:
        for number in range(count):
            writer.send(topic, number % PARTITIONS, b"order")
        assert writer.flush(60_000) == 0


# Fifty members

SLOTS, PROCESSES, EACH = 200, 5, 10

CROWD = """
import sys, threading
from penstock.claims.member import Listener, made
from penstock.claims.records import Slot
from penstock.claims.running import Running
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, ledger, heartbeat, process, each, slots = sys.argv[1:]
claims = ClaimsSettings(topic=ledger, heartbeat=duration(heartbeat))
settings = Settings(kafka=KafkaSettings(bootstrap_servers=bootstrap), claims=claims)
said = threading.Lock()

def begin(client):
    def tell(what, tenure):
        with said:
            print(what, client, tenure.slot.partition, tenure.token, tenure.position or 0, flush=True)
    def gained(tenure):
        tell("gained", tenure)
        tenure.position = (tenure.position or 0) + 1
    listener = Listener(gained=gained, lost=lambda t, why: tell("lost", t), released=lambda t: tell("released", t))
    member = Running(settings, made(claims, client=client, listener=listener), client=client)
    member.start([Slot("crowd", "t", number) for number in range(int(slots))])
    return member

members = [begin(f"m{process}-{number}") for number in range(int(each))]
sys.stdin.read()
for member in members:
    member.stop(within_s=10)
"""


class Said(NamedTuple):
    what: str
    client: str
    slot: int
    token: int
    position: int


class Crowd:
    """Processes with many members each, and what these say about the slots they get and give."""

    def __init__(self, settings: Settings) -> None:
        self.said: list[Said] = []
        self.processes: list[subprocess.Popen[str]] = []
        self._settings, self._listeners = settings, list[threading.Thread]()

    def start(self, number: int) -> None:
        claims = self._settings.claims
        arguments = [self._settings.kafka.bootstrap_servers, claims.topic, f"{int(claims.heartbeat)}ms"]
        command = [sys.executable, "-c", CROWD, *arguments, str(number), str(EACH), str(SLOTS)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        listener = threading.Thread(target=self._listen, args=(process,))
        listener.start()
        self._listeners.append(listener)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout as lines:
                for line in lines:
                    what, client, *numbers = line.split()
                    self.said.append(Said(what, client, *map(int, numbers)))

    def holders(self) -> dict[int, Said]:
        """Who has each slot: the one with the highest token that has not given it up."""
        held: dict[int, Said] = {}
        for each in sorted(self.said, key=lambda said: (said.token, said.what != "gained")):
            if each.what == "gained":
                held[each.slot] = each
            elif each.slot in held and held[each.slot].token == each.token:
                del held[each.slot]
        return held

    def shares(self) -> list[int]:
        return sorted(Counter(each.client for each in self.holders().values()).values())

    def end(self) -> None:
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for listener in self._listeners:
            listener.join()


@pytest.fixture
def crowd(penstock_broker: Embedded) -> Iterator[Crowd]:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", heartbeat=duration("3s")),
    )
    started = Crowd(settings)
    try:
        yield started
    finally:
        started.end()


def test_fifty_members_share_two_hundred_slots_and_ten_that_are_killed_are_taken_over(crowd: Crowd) -> None:
    for number in range(PROCESSES):
        crowd.start(number)
    eventually(lambda: crowd.shares() == [SLOTS // (PROCESSES * EACH)] * PROCESSES * EACH, within_s=300)
    before = crowd.holders()

    crowd.processes[0].kill()
    theirs = {slot for slot, said in before.items() if said.client.startswith("m0-")}
    assert len(theirs) == SLOTS // PROCESSES
    eventually(
        lambda: (
            not any(said.client.startswith("m0-") for said in crowd.holders().values()) and crowd.shares() == [5] * 40
        ),
        within_s=300,
    )

    after = crowd.holders()
    assert all(after[slot].token > before[slot].token for slot in theirs)
    assert all(after[slot].position > 0 for slot in theirs)  # what the dead had told is kept
    tokens = [said.token for said in crowd.said if said.what == "gained"]
    assert len({(said.slot, said.token) for said in crowd.said if said.what == "gained"}) == len(tokens)
