"""Locks on a real broker: one holder at a time, tokens that grow, takeover from the dead and from those who release."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from real_kafka import eventually
from real_process import started

from penstock.broker import Embedded
from penstock.claims.lock import Lock
from penstock.errors import NotAcquired, Refused, UsageError
from penstock.kafka.topics import Admin
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

HEARTBEAT = "500ms"


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=f"claims-{uuid.uuid4().hex[:8]}", partitions=2, heartbeat=duration(HEARTBEAT)),
    )


HOLDER = """
import sys, time
from penstock.claims.lock import Lock
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, topic, name = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=topic, partitions=2, heartbeat=duration("500ms")),
)
with Lock(settings, name, client="child") as lock:
    print(lock.token, flush=True)
    lock.lost.wait(120)
    print("lost", flush=True)
"""


@contextmanager
def held_by_a_process(settings: Settings, name: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", HOLDER, settings.kafka.bootstrap_servers, settings.claims.topic, name]
    with started(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield child, int(child.stdout.readline())


def test_a_lock_is_held_and_given_back_and_tokens_grow(settings: Settings) -> None:
    with Lock(settings, "report", client="a") as first:
        assert not first.lost.is_set()
        token = first.token
    with Lock(settings, "report", client="b") as second:
        assert second.token > token


def test_a_second_one_waits_and_gets_it_as_soon_as_it_is_released(settings: Settings) -> None:
    first, second = Lock(settings, "report", client="a"), Lock(settings, "report", client="b")
    first.acquire()
    with pytest.raises(NotAcquired, match=r"lock penstock/report was not to be had in 1 s; .*penstock claims explain"):
        second.acquire("1s")

    first.release()
    began = time.monotonic()
    second.acquire("30s")
    took_s = time.monotonic() - began
    second.release()
    print(f"\n  a released lock was taken after {took_s:.2f} s")


def test_locks_of_other_names_do_not_meet(settings: Settings) -> None:
    with Lock(settings, "one", client="a"), Lock(settings, "two", client="b", timeout="30s"):
        pass


def test_a_killed_holder_is_taken_over_and_a_token_tells_them_apart(settings: Settings) -> None:
    with held_by_a_process(settings, "report") as (child, token):
        child.send_signal(signal.SIGKILL)
        began = time.monotonic()
        with Lock(settings, "report", client="b", timeout="60s") as lock:
            print(f"\n  a killed holder was taken over after {time.monotonic() - began:.2f} s (2 HB are 1 s)")
            assert lock.token > token


def test_a_paused_holder_is_taken_over_and_knows_it_when_it_wakes(settings: Settings) -> None:
    with held_by_a_process(settings, "report") as (child, token):
        os.kill(child.pid, signal.SIGSTOP)
        with Lock(settings, "report", client="b", timeout="60s") as lock:
            assert lock.token > token
            os.kill(child.pid, signal.SIGCONT)
            assert child.stdout is not None
            assert child.stdout.readline() == "lost\n"
            assert not lock.lost.is_set()


REGAINER = HOLDER.replace('print("lost", flush=True)', "sys.stdin.readline(); print(lock.token, flush=True)")


def test_a_lock_that_was_lost_is_not_regained_under_the_hands_of_its_former_holder(settings: Settings) -> None:
    """Who wakes and asks for its token must not be given one that would pass the fence."""
    command = [sys.executable, "-c", REGAINER, settings.kafka.bootstrap_servers, settings.claims.topic, "report"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        token = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGSTOP)
        with Lock(settings, "report", client="b", timeout="60s"):
            pass  # taken over and given back while it slept: free again when it wakes
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(2)  # a claim takes far less; there is no event for what must not happen
        child.stdin.write("\n")
        child.stdin.flush()

        assert int(child.stdout.readline()) == token


def test_a_holder_that_cannot_reach_the_broker_knows_that_it_may_have_lost(settings: Settings) -> None:
    with Embedded() as own:
        apart = replace(settings, kafka=KafkaSettings(bootstrap_servers=own.bootstrap))
        lock = Lock(apart, "report", client="a")
        lock.acquire("60s")
        own.stop(1)
        assert lock.lost.wait(60)
        own.cont(1)
        lock.release()


def test_wrong_use_is_told(settings: Settings) -> None:
    with pytest.raises(UsageError, match="lock name 'a b' is not allowed"):
        Lock(settings, "a b")
    lock = Lock(settings, "report", client="a")
    with pytest.raises(UsageError, match="is not held"):
        _ = lock.token
    with lock, pytest.raises(UsageError, match="acquired already"):
        lock.acquire()


def test_another_partition_count_is_refused_with_what_mends_it(settings: Settings) -> None:
    with Lock(settings, "report", client="a"):
        pass
    other = replace(settings, claims=replace(settings.claims, partitions=3))
    with pytest.raises(Refused, match="PENSTOCK_CLAIMS_PARTITIONS=2"):
        Lock(other, "report", client="b").acquire("30s")


def test_other_times_than_those_of_the_genesis_are_refused(settings: Settings) -> None:
    with Lock(settings, "report", client="a"):
        pass
    other = replace(settings, claims=replace(settings.claims, heartbeat=duration("3s")))
    with pytest.raises(Refused, match="was founded with"):
        Lock(other, "report", client="b").acquire("30s")


def test_a_compacted_coordination_topic_is_refused(settings: Settings) -> None:
    with Lock(settings, "report", client="a"):
        pass
    with Admin(settings.kafka) as admin:
        admin.alter(settings.claims.topic, {"cleanup.policy": "compact"})
        eventually(
            lambda: admin.describe([settings.claims.topic])[settings.claims.topic].config["cleanup.policy"] == "compact"
        )
    with pytest.raises(Refused, match="penstock doctor --fix"):
        Lock(settings, "report", client="b").acquire("30s")
