"""A child process is heard to its last word, however it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.bench import child
from penstock.bench.child import Child

OBEYS = """
import sys
print("here", sys.argv[1], flush=True)
sys.stdin.read()
print("told to go", flush=True)
"""
STAYS = """
import threading
print("here", flush=True)
threading.Event().wait()
"""


@dataclass(slots=True)
class Heard(Child):
    lines: list[list[str]] = field(default_factory=list)
    is_there: threading.Event = field(default_factory=threading.Event)

    def hear(self, words: list[str]) -> None:
        self.lines.append(words)
        self.is_there.set()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Heard]]:
    """Starts one of the two programs; what is left of them is killed in the end."""
    (tmp_path / "obeys.py").write_text(OBEYS)
    (tmp_path / "stays.py").write_text(STAYS)
    monkeypatch.chdir(tmp_path)
    started: list[Heard] = []

    def start(module: str, *arguments: str) -> Heard:
        started.append(Heard.running(module, *arguments))
        return started[-1]

    yield start
    for heard in started:
        heard.kill()


def test_who_is_stopped_goes_by_itself_and_is_heard_to_the_end(run: Callable[..., Heard]) -> None:
    heard = run("obeys", "a b")
    heard.stop()
    heard.end()

    assert heard.process.returncode == 0
    assert heard.lines == [["here", "a", "b"], ["told", "to", "go"]]


def test_who_is_killed_is_gone_and_says_no_more(run: Callable[..., Heard]) -> None:
    heard = run("obeys", "a")
    assert heard.is_there.wait(60)
    heard.kill()
    heard.kill()

    assert heard.process.returncode == -signal.SIGKILL
    assert heard.lines == [["here", "a"]]


def test_who_does_not_go_is_killed_at_the_end(run: Callable[..., Heard], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    heard = run("stays")
    assert heard.is_there.wait(60)
    heard.end()

    assert heard.process.returncode == -signal.SIGKILL
