"""`penstock work MODULE:APP`: real processes that are killed, drained, replaced and reloaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_kafka import eventually, settings_for, unique
from real_process import is_gone
from work_command import IDLE, working

from penstock.broker import Embedded
from penstock.broker.running import running_on
from penstock.cli.work import megabytes
from penstock.errors import NotFound, UsageError
from penstock.kafka.topics import Admin
from penstock.observe.events import Event, ProcessDied, subscribed
from penstock.queue.sending import Sender
from penstock.queue.supervise import BackOff, Supervisor, Terms, Tools
from penstock.queue.upkeep import make_topic
from penstock.values import TopicPartition, duration


@pytest.fixture
def shop(tmp_path: Path) -> Callable[..., Path]:
    def write(begins: str = "pass", ends: str = "pass") -> Path:
        path = tmp_path / "shop.py"
        path.write_text(IDLE.format(begins=begins, ends=ends))
        return path

    write()
    return write


@pytest.mark.usefixtures("shop")
def test_a_child_that_is_killed_is_started_again_and_sigterm_drains_all(tmp_path: Path) -> None:
    with working(tmp_path, "shop:app", "--processes", "2") as work:
        first, second = work.wait_for("process ready", 2)
        os.kill(first["pid"], signal.SIGKILL)
        third = work.wait_for("process ready", 3)[-1]
        work.process.terminate()
        code = work.end()

        assert code == 0, work.errors
        assert third["number"] == first["number"]
        [died] = work.named("process died")
        assert died == {
            "event": "process died",
            "number": first["number"],
            "pid": first["pid"],
            "exit_code": -9,
            "restart_in_s": 0.5,
        }
        stopped = {one["pid"]: one["exit_code"] for one in work.named("process stopped")}
        assert stopped == {second["pid"]: 0, third["pid"]: 0}
        drained = {int(path.name.removeprefix("drained-")) for path in tmp_path.glob("drained-*")}
        assert drained == {second["pid"], third["pid"]}


def test_what_does_not_end_in_its_grace_is_killed_and_the_exit_code_says_so(
    tmp_path: Path, shop: Callable[..., Path]
) -> None:
    shop(ends="time.sleep(600)")
    with working(tmp_path, "shop:app", "--grace", "1s") as work:
        [child] = work.wait_for("process ready")
        began = time.monotonic()
        work.process.terminate()

        assert work.end() == 1
        assert time.monotonic() - began > 1
        assert work.named("process killed")[0]["pid"] == child["pid"]
        assert is_gone(child["pid"])


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, shop: Callable[..., Path]) -> None:
    shop(ends="pathlib.Path('asked').touch(); time.sleep(600)")
    with working(tmp_path, "shop:app", "--grace", "10m") as work:
        [child] = work.wait_for("process ready")
        work.process.send_signal(signal.SIGINT)
        eventually((tmp_path / "asked").exists)
        work.process.send_signal(signal.SIGINT)

        assert work.end() == 130
        assert is_gone(child["pid"])


@pytest.mark.usefixtures("shop")
def test_no_child_outlives_a_supervisor_that_is_killed_and_they_drain_first(tmp_path: Path) -> None:
    with working(tmp_path, "shop:app", "--processes", "2", "--grace", "20s") as work:
        children = [one["pid"] for one in work.wait_for("process ready", 2)]
        work.process.kill()

        eventually(lambda: all(map(is_gone, children)), within_s=20)
        assert all((tmp_path / f"drained-{pid}").exists() for pid in children)


def test_a_child_that_hangs_does_not_outlive_it_either(tmp_path: Path, shop: Callable[..., Path]) -> None:
    shop(ends="time.sleep(600)")
    with working(tmp_path, "shop:app", "--grace", "1s") as work:
        [child] = work.wait_for("process ready")
        work.process.kill()

        eventually(lambda: is_gone(child["pid"]), within_s=30)


def test_a_child_that_takes_too_much_memory_is_drained_and_replaced(tmp_path: Path, shop: Callable[..., Path]) -> None:
    grow = "seen = pathlib.Path('seen'); ballast = [] if seen.exists() else [b'x' * 600_000_000]; seen.touch()"
    shop(begins=grow)
    with working(tmp_path, "shop:app", "--max-memory", "500MB") as work:
        first, second = work.wait_for("process ready", 2)
        work.process.terminate()

        assert work.end() == 0, work.errors
        [large] = work.named("process too large")
        assert (large["pid"], large["memory_max_mb"]) == (first["pid"], 500.0)
        assert large["resident_mb"] > 500
        assert [one["pid"] for one in work.named("process stopped")] == [first["pid"], second["pid"]]
        assert (tmp_path / f"drained-{first['pid']}").exists()
        assert work.named("process died") == []


def test_reload_replaces_the_children_and_waits_while_the_code_is_broken(
    tmp_path: Path, shop: Callable[..., Path]
) -> None:
    with working(tmp_path, "shop:app", "--reload") as work:
        [first] = work.wait_for("process ready")
        shop(begins="pathlib.Path('second').touch()")
        second = work.wait_for("process ready", 2)[-1]
        eventually((tmp_path / "second").exists)
        (tmp_path / "shop.py").write_text("app = 1")
        work.wait_for("process died")
        shop(begins="pathlib.Path('third').touch()")
        third = work.wait_for("process ready", 3)[-1]
        work.process.terminate()

        assert work.end() == 0, work.errors
        assert len({first["pid"], second["pid"], third["pid"]}) == 3
        assert {Path(one["path"]).name for one in work.named("code changed")} == {"shop.py"}
        assert any("shop:app is no App but an int" in line for line in work.errors)


@pytest.mark.parametrize(
    ("target", "said", "meant"),
    [
        ("store:app", "there is no module store", "run this in the folder that has store"),
        ("shop.orders:app", "there is no module shop.orders", ""),
        ("shop:ap", "shop has no ap", "did you mean shop:app?"),
        ("shop:something", "shop:something is no App but an int", "did you mean shop:app?"),
        ("shop.py:app", "shop.py is a file, not a module", "give it as shop:app"),
        ("shop-1:app", "'shop-1:app' names no application", "MODULE:APP"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_what_is_no_application_is_said_once_with_exit_2(tmp_path: Path, target: str, said: str, meant: str) -> None:
    with working(tmp_path, target, "--processes", "3") as work:
        assert work.end() == 2
        text = "".join(work.errors)
        assert text.count(f"error: {said}") == 1
        assert meant in text
        assert work.named("process ready") == []


def test_without_a_kafka_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import penstock\napp = penstock.App('shop')")
    with working(tmp_path, "shop:app") as work:
        assert work.end() == 2
        text = "".join(work.errors)
        assert "error: no Kafka is named" in text
        assert "--embedded" in text


def test_flags_and_the_name_of_the_member_reach_the_children(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[claims]\nclient = 'shop'\n")
    (tmp_path / "shop.py").write_text(
        "import contextlib, pathlib\nimport penstock\n"
        "class Telling(penstock.App):\n"
        "    def check_workable(self):\n"
        "        pass\n"
        "    @contextlib.contextmanager\n"
        "    def working(self, **named):\n"
        "        kafka = self.settings.kafka\n"
        "        told = [kafka.bootstrap_servers, kafka.client['client.rack'], self.settings.topic_prefix]\n"
        "        pathlib.Path(f'told-{self.settings.claims.client}').write_text(' '.join(told))\n"
        "        yield []\n"
        "app = Telling('shop')\n"
    )
    flags = ["-b", "127.0.0.1:1", "-X", "client.rack=r1", "--prefix", "own.", "--processes", "2"]
    with working(tmp_path, "shop:app", *flags) as work:
        told = [tmp_path / "told-shop-1", tmp_path / "told-shop-2"]
        eventually(lambda: all(path.exists() and path.read_text() for path in told), within_s=60)
        work.process.terminate()

        assert work.end() == 0, work.errors
        assert {path.read_text() for path in told} == {"127.0.0.1:1 r1 own."}


# With a broker

REAL = """
import pathlib, time
import penstock

app = penstock.App("shop")
orders = app.queue("{topic}", lease="3s")

@orders.handler()
def charge(order: str) -> None:
    pathlib.Path(f"began-{{order}}").touch()
    while order.startswith("slow") and not pathlib.Path(f"end-{{order}}").exists():
        time.sleep(0.01)
    pathlib.Path(f"charged-{{order}}").touch()
"""


def test_what_a_killed_child_had_in_hand_is_handled_again_and_what_is_under_way_at_sigterm_is_finished(
    penstock_broker: Embedded, tmp_path: Path
) -> None:
    topic = unique("orders")
    (tmp_path / "shop.py").write_text(REAL.format(topic=topic))
    (tmp_path / "penstock.toml").write_text(
        f"[kafka]\nbootstrap_servers = '{penstock_broker.bootstrap}'\n"
        f"[claims]\ntopic = '{unique('claims')}'\npartitions = 1\nheartbeat = '500ms'\n[queue]\npartitions = 2\n"
    )
    with Sender(settings_for(penstock_broker.bootstrap), topic) as sender, working(tmp_path, "shop:app") as work:
        [first] = work.wait_for("process ready")
        eventually(lambda: was_sent(sender, "slow-1"), within_s=60)
        eventually((tmp_path / "began-slow-1").exists, within_s=60)
        os.kill(first["pid"], signal.SIGKILL)
        (tmp_path / "end-slow-1").touch()
        eventually((tmp_path / "charged-slow-1").exists, within_s=60)
        sender.send("slow-2")
        eventually((tmp_path / "began-slow-2").exists, within_s=60)
        work.process.terminate()
        assert not (tmp_path / "charged-slow-2").exists()
        (tmp_path / "end-slow-2").touch()

        assert work.end() == 0, work.errors
        assert (tmp_path / "charged-slow-2").exists()
        left = run_json(tmp_path, "queues", "--group", "shop")["queues"]
        [one] = [each for each in left if each["queue"] == topic]
        assert (one["lag_records"], one["leased"], one["dead"]) == (0, 0, 0)


POISON = """
import os
import penstock

app = penstock.App("shop")
orders = app.queue("{topic}", lease="1s", attempts_max=2)
done = os.open("done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@orders.handler()
def charge(order: int) -> None:
    if order == 250:
        os._exit(7)
    os.write(done, b"%d " % order)
"""


def test_a_message_that_kills_every_child_ends_in_the_dead_letters_and_its_499_neighbours_do_not(
    penstock_broker: Embedded, tmp_path: Path
) -> None:
    topic = unique("orders")
    (tmp_path / "shop.py").write_text(POISON.format(topic=topic))
    (tmp_path / "penstock.toml").write_text(
        f"[kafka]\nbootstrap_servers = '{penstock_broker.bootstrap}'\n"
        f"[claims]\ntopic = '{unique('claims')}'\npartitions = 1\nheartbeat = '500ms'\n[queue]\npartitions = 2\n"
    )
    kafka = settings_for(penstock_broker.bootstrap)
    with Admin(kafka) as admin, Sender(kafka, topic) as sender:
        make_topic(admin, topic, partitions=2)
        sender.send_many(range(500))
    with working(tmp_path, "shop:app", "--processes", "2") as work:
        eventually(lambda: is_worked_off(penstock_broker, topic), within_s=110)
        work.process.terminate()
        assert work.end() == 0, work.errors

    done = Counter(map(int, (tmp_path / "done").read_text().split()))
    assert set(done) == set(range(500)) - {250}
    assert len(work.named("process died")) >= 2
    [letter] = run_json(tmp_path, "peek", topic, "--state", "dead")["messages"]
    assert (letter["value"], letter["attempt"], letter["reason"]) == ("250", 2, "lost too often")


def is_worked_off(broker: Embedded, topic: str) -> bool:
    """Whether the group's committed offsets are at the end."""
    places = [TopicPartition(topic, number) for number in range(2)]
    with Admin(settings_for(broker.bootstrap)) as admin:
        ends, committed = admin.bounds(places), admin.group_offsets("shop", places)
        return all(committed.get(place) == ends[place].end for place in places)


def run_json(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "penstock", *arguments, "--json"]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, timeout=100, check=True).stdout)


def was_sent(sender: Sender, value: str) -> bool:
    """As soon as the worker has made the topic."""
    try:
        sender.send(value)
    except NotFound:
        return False
    return True


def test_who_reads_the_first_event_and_goes_away_ends_the_command_in_order(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(IDLE.format(begins="", ends=""))
    command = [sys.executable, "-m", "penstock", "work", "shop:app", "--json"]

    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "process started"
            process.stdout.close()
            _, errors = process.communicate(timeout=100)
        finally:
            process.kill()

    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    assert list(tmp_path.glob("drained-*")), errors


def test_an_app_without_a_handler_is_nothing_to_run(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import penstock\napp = penstock.App('shop')\norders = app.queue('orders')")
    with working(tmp_path, "shop:app", "-b", "127.0.0.1:1") as work:
        assert work.end() == 2
        assert "error: app shop has no handler" in "".join(work.errors)


def test_with_embedded_it_brings_its_own_broker_that_other_commands_find(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(REAL.format(topic="orders"))
    (tmp_path / "penstock.toml").write_text(f"[broker]\ndata = '{tmp_path / 'kafka'}'\n")
    with working(tmp_path, "shop:app", "--embedded") as work:
        work.wait_for("process ready")
        sent = subprocess.run(
            [sys.executable, "-m", "penstock", "send", "orders", "one", "--make"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert sent.returncode == 0, sent.stderr
        eventually((tmp_path / "charged-one").exists, within_s=60)
        work.process.terminate()

        assert work.end() == 0, work.errors
        assert any("on an embedded broker 127.0.0.1:" in line for line in work.errors)
    eventually(lambda: running_on(tmp_path / "kafka") is None)


# The supervisor itself, with children that are quicker to start

QUICK = Terms(back_off=duration("10ms"), back_off_max=duration("20ms"), grace=duration("5s"))

SAYS = "import os, sys\nline = int(sys.argv[1])\n"


def supervised(code: str, *, deaths: int | None = None) -> tuple[int, list[Event]]:
    """Run children of this code; after so many deaths it is asked to stop."""
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        if deaths is not None and sum(isinstance(each, ProcessDied) for each in seen) == deaths:
            os.kill(os.getpid(), signal.SIGTERM)

    tools = Tools(command=lambda _, line: [sys.executable, "-S", "-c", SAYS + code, str(line)])
    with subscribed(listen):
        return Supervisor(QUICK, tools).run(), seen


def test_children_that_never_come_to_work_are_given_up() -> None:
    code, seen = supervised("sys.exit(1)")

    waits_s = [each.restart_in_s for each in seen if isinstance(each, ProcessDied)]
    assert (code, len(waits_s)) == (1, QUICK.failures_max)
    assert waits_s[-1] is None
    assert None not in waits_s[:-1]


def test_what_cannot_work_at_all_is_not_said_to_be_started_again() -> None:
    code, seen = supervised("os.write(line, b'failed\\n'); sys.exit(2)")

    assert code == 2
    assert [each.restart_in_s for each in seen if isinstance(each, ProcessDied)] == [None]


def test_children_that_fail_as_soon_as_they_work_are_given_up() -> None:
    code, seen = supervised("os.write(line, b'ready\\nfailed\\n'); sys.exit(6)")

    assert (code, sum(isinstance(each, ProcessDied) for each in seen)) == (1, QUICK.failures_max)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("os.write(line, b'ready\\n'); os._exit(1)", id="killed by a message"),
        pytest.param("os.write(line, b'away\\n'); sys.exit(4)", id="the broker is away"),
    ],
)
def test_children_that_were_at_work_are_started_again_for_ever(code: str) -> None:
    exit_code, seen = supervised(code, deaths=2 * QUICK.failures_max)

    assert (exit_code, sum(isinstance(each, ProcessDied) for each in seen)) == (0, 2 * QUICK.failures_max)


def test_the_back_off_doubles_and_begins_anew_after_a_quiet_time() -> None:
    back_off = BackOff(Terms(back_off=duration("1s"), back_off_max=duration("5s"), quiet=duration("1m")))

    assert [back_off.after(lived_s) for lived_s in (0, 0, 59, 0, 0, 60, 0)] == [1, 2, 4, 5, 5, 1, 2]


def test_memory_is_given_in_units_that_people_write() -> None:
    assert [megabytes(text) for text in ("500MB", "1.5 GB", "512MiB", "1gib")] == [500, 1_500, 536.870912, 1073.741824]
    for wrong in ("500", "0MB", "MB", "1TB1", "many"):
        with pytest.raises(UsageError, match="no amount of memory"):
            megabytes(wrong)
