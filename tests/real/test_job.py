"""Singleton jobs on a real broker: each period is run once, by one of many, through kills, pauses and failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from real_kafka import eventually, recorded_events, unique
from real_process import started

from penstock import App
from penstock.broker import Embedded
from penstock.claims.job import Job, Run, running
from penstock.claims.lock import Lock
from penstock.errors import NotAcquired, UsageError
from penstock.observe.events import JobFailed, JobFinished
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

LONG = "1000w"
"""A period that does not end during a test."""


@pytest.fixture
def settings(penstock_broker: Embedded) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=penstock_broker.bootstrap),
        claims=ClaimsSettings(topic=unique("claims"), partitions=2, heartbeat=duration("500ms")),
    )


def nothing(run: Run) -> None:
    """A job that has nothing to do."""


def periods(runs: list[Run]) -> list[datetime]:
    return [run.scheduled_for for run in runs]


# Once


def test_the_first_call_of_a_period_runs_and_the_others_do_not(settings: Settings) -> None:
    ran: list[Run] = []
    first = Job(settings, "report", ran.append, every=LONG, client="a").run_if_due(timeout="60s")
    second = Job(settings, "report", ran.append, every=LONG, client="b").run_if_due(timeout="60s")

    assert first is not None
    assert (second, ran) == (None, [first])
    assert first.scheduled_for.timestamp() % duration(LONG).seconds == 0


def test_the_next_period_is_run_again_and_what_was_missed_is_run_once(settings: Settings) -> None:
    job = Job(settings, "report", nothing, every="2s", client="a")
    first = job.run_if_due(timeout="60s")
    assert first is not None
    # The clock has to pass at least one whole period.
    eventually(lambda: datetime.now(UTC) >= first.scheduled_for + timedelta(seconds=4))

    again, too_early = job.run_if_due(timeout="60s"), job.run_if_due(timeout="60s")

    assert again is not None
    assert again.scheduled_for - first.scheduled_for >= timedelta(seconds=4)
    assert too_early is None or too_early.scheduled_for > again.scheduled_for


def test_a_failure_is_raised_and_counts_as_run(settings: Settings) -> None:
    def fail(run: Run) -> None:
        raise ValueError("no paper")

    with recorded_events() as events, pytest.raises(ValueError, match="no paper"):
        Job(settings, "report", fail, every=LONG, client="a").run_if_due(timeout="60s")

    assert [event.reason for event in events if isinstance(event, JobFailed)] == ["ValueError('no paper')"]
    assert Job(settings, "report", nothing, every=LONG, client="b").run_if_due(timeout="60s") is None


def test_an_interrupted_run_does_not_count(settings: Settings) -> None:
    def interrupt(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Job(settings, "report", interrupt, every=LONG, client="a").run_if_due(timeout="60s")

    assert Job(settings, "report", nothing, every=LONG, client="b").run_if_due(timeout="60s") is not None


def test_who_comes_while_another_is_at_it_waits_and_finds_it_done(settings: Settings) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(run: Run) -> None:
        begun.set()
        goes_on.wait(60)

    first = threading.Thread(target=Job(settings, "report", slow, every=LONG, client="a").run_if_due)
    first.start()
    assert begun.wait(60)
    with pytest.raises(NotAcquired, match="was not to be had in 1 s"):
        Job(settings, "report", nothing, every=LONG, client="b").run_if_due(timeout="1s")
    found: list[Run | None] = []
    second = threading.Thread(
        target=lambda: found.append(Job(settings, "report", nothing, every=LONG, client="c").run_if_due())
    )
    second.start()
    goes_on.set()
    first.join(60)
    second.join(60)

    assert found == [None]


def test_a_lock_of_the_same_name_keeps_the_job_out_and_leaves_its_memory(settings: Settings) -> None:
    assert Job(settings, "report", nothing, every=LONG, client="a").run_if_due(timeout="60s") is not None
    with Lock(settings, "report", client="b", timeout="60s"), pytest.raises(NotAcquired):
        Job(settings, "report", nothing, every=LONG, client="c").run_if_due(timeout="1s")
    assert Job(settings, "report", nothing, every=LONG, client="c").run_if_due(timeout="60s") is None


# Death, in both orders

CHILD = """
import os, signal, sys
from penstock.claims.job import Job
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

bootstrap, topic, delivery = sys.argv[1:]
settings = Settings(
    kafka=KafkaSettings(bootstrap_servers=bootstrap),
    claims=ClaimsSettings(topic=topic, partitions=2, heartbeat=duration("500ms")),
)

def work(run):
    print(run.token, flush=True)
    sys.stdin.readline()
    print("lost" if run.lost.wait(60) else "held", flush=True)

Job(settings, "report", work, every="1000w", delivery=delivery, client="child").run_if_due()
"""


@contextmanager
def at_work(settings: Settings, delivery: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    given = [settings.kafka.bootstrap_servers, settings.claims.topic, delivery]
    command = [sys.executable, "-c", CHILD, *given]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        yield child, int(child.stdout.readline())


@pytest.mark.parametrize(("delivery", "runs_again"), [("at_least_once", True), ("at_most_once", False)])
def test_who_dies_at_work_is_followed_or_not_as_the_delivery_says(
    settings: Settings, delivery: str, runs_again: bool
) -> None:
    with at_work(settings, delivery) as (child, token):
        child.kill()
        again = Job(settings, "report", nothing, every=LONG, delivery=delivery, client="b").run_if_due(timeout="60s")

    assert (again is not None) == runs_again
    assert again is None or again.token > token


def test_who_sleeps_at_work_is_followed_and_knows_it_when_it_wakes(settings: Settings) -> None:
    with at_work(settings, "at_least_once") as (child, token):
        child.send_signal(signal.SIGSTOP)
        again = Job(settings, "report", nothing, every=LONG, client="b").run_if_due(timeout="60s")
        assert again is not None
        assert again.token > token

        child.send_signal(signal.SIGCONT)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "lost\n"

    assert Job(settings, "report", nothing, every=LONG, client="c").run_if_due(timeout="60s") is None


# Again and again


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_of_many_processes_one_runs_each_period(settings: Settings, delivery: str) -> None:
    runs: list[tuple[str, Run]] = []

    def runner(client: str) -> Job:
        note = lambda run: runs.append((client, run))  # noqa: E731
        return Job(settings, "report", note, every="1s", delivery=delivery, client=client)

    with running([runner(client) for client in "abc"], grace="30s"):
        eventually(lambda: len(runs) >= 4, within_s=90)

    counts = Counter(periods([run for _, run in runs]))
    assert set(counts.values()) == {1}, counts
    assert periods([run for _, run in runs]) == sorted(counts)


def test_a_long_period_leaves_the_log_alone_and_everybody_finds_it_done(settings: Settings) -> None:
    runs: list[Run] = []
    jobs = [Job(settings, "report", runs.append, every=LONG, client=client) for client in "abc"]
    with running(jobs, grace="30s"):
        eventually(lambda: runs, within_s=60)
        # All of them have left the lock alone when somebody else can have it.
        with Lock(settings, "report", client="other", timeout="60s") as lock:
            assert lock.seen.position is not None
    assert len(runs) == 1


def test_an_overrun_neither_runs_twice_at_once_nor_makes_up_for_what_it_missed(settings: Settings) -> None:
    runs, at_once, most = [], [0], [0]

    def slow(run: Run) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(1.2)
        at_once[0] -= 1
        runs.append(run)

    with running([Job(settings, "report", slow, every="500ms", client=client) for client in "ab"], grace="30s"):
        eventually(lambda: len(runs) >= 3, within_s=90)

    assert most == [1]
    gaps = [later - earlier for earlier, later in zip(periods(runs), periods(runs)[1:], strict=False)]
    assert min(gaps) >= timedelta(seconds=1)


def test_after_a_failure_the_next_period_goes_on(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Run] = []

    def fails_first(run: Run) -> None:
        calls.append(run)
        if len(calls) == 1:
            raise ValueError("no paper")

    with recorded_events() as events, running([Job(settings, "report", fails_first, every="1s")], grace="30s"):
        eventually(lambda: any(isinstance(event, JobFinished) for event in events), within_s=90)

    assert [type(event) for event in events if isinstance(event, JobFailed | JobFinished)][:2] == [
        JobFailed,
        JobFinished,
    ]
    assert len(set(periods(calls))) == len(calls)
    assert "no paper" in caplog.text


def test_a_killed_runner_is_followed_by_another(settings: Settings) -> None:
    with at_work(settings, "at_least_once") as (child, token):
        runs: list[Run] = []
        with running([Job(settings, "report", runs.append, every=LONG, client="b")], grace="30s"):
            os.kill(child.pid, signal.SIGKILL)
            eventually(lambda: runs, within_s=60)

    assert runs[0].token > token


def test_an_unreachable_broker_is_told_and_tried_again(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.claims.job._TRY_AGAIN_S", 0.1)
    nowhere = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout=duration("1s")))
    with running([Job(nowhere, "report", nothing, every="1s")], grace="30s"):
        eventually(lambda: "trying again" in caplog.text, within_s=60)


# In an application


def test_an_app_runs_its_jobs_until_it_is_told_to_end(settings: Settings) -> None:
    app, runs, told = App("shop", settings=settings), [], []
    handler = signal.getsignal(signal.SIGTERM)

    @app.every(LONG)
    def report(run: Run) -> None:
        runs.append(run)
        told.append(run.stopping.is_set())
        run.stopping.wait(60)
        told.append(run.stopping.is_set())

    def end() -> None:
        eventually(lambda: runs, within_s=60)
        os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end)
    ender.start()
    app.run_jobs()
    ender.join()

    assert (runs[0].name, told) == ("report", [False, True])
    assert signal.getsignal(signal.SIGTERM) == handler  # as it was
    assert App("shop", settings=settings).once("report", every=LONG)(nothing)() is None  # it counts as run
    assert App("bank", settings=settings).once("report", every=LONG)(nothing)() is not None  # another app's


def test_wrong_use_is_told(settings: Settings) -> None:
    app = App("shop", settings=settings)
    app.every("1h", name="report")(nothing)
    with pytest.raises(UsageError, match="there is a job report already"):
        app.every("2h", name="report")(nothing)
    with pytest.raises(UsageError, match="cannot run every 0ms"):
        app.every(0, name="other")(nothing)
    with pytest.raises(UsageError, match="'exactly_once' is no delivery of a job"):
        app.once("other", every="1h", delivery="exactly_once")(nothing)


def test_default_settings_make_a_job_of_the_default_app(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import penstock

    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text(
        f'[kafka]\nbootstrap_servers = "{settings.kafka.bootstrap_servers}"\n'
        f'[claims]\ntopic = "{settings.claims.topic}"\npartitions = 2\nheartbeat = "500ms"\n'
    )

    @penstock.once("report", every=LONG)
    def report(run: Run) -> None:
        """Writes it."""

    first = report()
    assert first is not None
    assert (report(), first.name) == (None, "report")
