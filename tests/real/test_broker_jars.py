"""Fetching jars from a repository of our own on the loopback: no network, real downloads, real processes."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from real_process import started

from penstock.broker import jars
from penstock.broker.jars import Fetching, Jar
from penstock.errors import Unavailable, WrongChecksum
from penstock.observe import Event, subscribed
from penstock.observe.events import JarsFetched

pytest.importorskip("jgo")

# jgo leaves the connection of a refused download to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@dataclass
class Repository:
    """Serves jars as Maven Central does, and can be told to misbehave."""

    url: str
    content: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def jar(self, artifact: str, content: bytes) -> Jar:
        jar = Jar("org.example", artifact, "1.0", hashlib.sha256(content).hexdigest(), len(content))
        self.content[jar.name] = content
        return jar


@pytest.fixture
def repository() -> Iterator[Repository]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if name not in served.content:
                self.send_error(404)
                return
            served.asked[name] += 1
            if served.failures[name] > 0:
                served.failures[name] -= 1
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(served.content[name])))
            self.end_headers()
            self.wfile.write(served.content[name])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Repository(f"http://127.0.0.1:{server.server_address[1]}/maven2")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield served
        server.shutdown()
        thread.join()
    gc.collect()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PENSTOCK_MAVEN", raising=False)
    return tmp_path / "cache" / "jars"


def _leftovers(cache: Path) -> list[Path]:
    return list(cache.glob(".fetching-*"))


def test_missing_jars_are_fetched_once_with_progress_and_then_need_no_network(
    repository: Repository, cache: Path
) -> None:
    wanted = [repository.jar(f"part{number}", bytes([number]) * 50_000) for number in range(12)]
    seen: list[Fetching] = []
    events: list[Event] = []

    with subscribed(events.append):
        paths = jars.fetch(wanted, progress=seen.append, repository=repository.url)
        again = jars.fetch(wanted, repository="http://127.0.0.1:1/gone")

    assert again == paths
    assert [path.read_bytes() for path in paths] == [repository.content[jar.name] for jar in wanted]
    assert set(repository.asked.values()) == {1}
    assert (seen[-1].jars_done, seen[-1].bytes_done) == (12, seen[-1].bytes_total) == (12, 600_000)
    assert [type(event) for event in events] == [JarsFetched]
    assert not _leftovers(cache)


def test_a_repository_may_be_named_by_the_environment(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MAVEN", repository.url + "/")

    (path,) = jars.fetch([repository.jar("part", b"content")])

    assert path.read_bytes() == b"content"


def test_a_download_that_fails_is_tried_again(repository: Repository) -> None:
    jar = repository.jar("shaky", b"content" * 1000)
    repository.failures[jar.name] = jars.TRIES - 1
    seen: list[Fetching] = []

    (path,) = jars.fetch([jar], progress=seen.append, repository=repository.url)

    assert path.read_bytes() == b"content" * 1000
    assert repository.asked[jar.name] == jars.TRIES
    assert seen[-1].bytes_done == jar.size


def test_a_jar_that_is_not_to_be_had_is_named_with_ways_out(repository: Repository, cache: Path) -> None:
    good, gone = repository.jar("good", b"good"), replace(repository.jar("gone", b""), version="2.0", size=4)

    with pytest.raises(Unavailable, match=r"org\.example:gone:2\.0 in 3 tries.*PENSTOCK_JARS"):
        jars.fetch([good, gone], repository=repository.url)

    assert not _leftovers(cache)


def test_a_jar_with_a_wrong_checksum_never_enters_the_cache(repository: Repository, cache: Path) -> None:
    jar = repository.jar("evil", b"right")
    repository.content[jar.name] = b"wrong"

    with pytest.raises(WrongChecksum, match=jar.sha256):
        jars.fetch([jar], repository=repository.url)

    assert not list(cache.rglob("*.jar"))


def test_a_truncated_jar_in_the_cache_is_fetched_again(repository: Repository) -> None:
    jar = repository.jar("part", b"whole content")
    (path,) = jars.fetch([jar], repository=repository.url)
    path.write_bytes(b"whole")

    jars.fetch([jar], repository=repository.url)

    assert path.read_bytes() == b"whole content"


def test_verify_finds_a_jar_of_the_same_size_that_was_changed_and_removes_it(repository: Repository) -> None:
    jar = repository.jar("part", b"content")
    (path,) = jars.fetch([jar], repository=repository.url)
    jars.verify([jar])
    path.write_bytes(b"cONTENT")

    with pytest.raises(WrongChecksum):
        jars.verify([jar])

    assert not jars.is_cached([jar])


def test_without_jgo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)

    with pytest.raises(Unavailable, match=r"penstock\[embedded\]"):
        jars.fetch([Jar("org.example", "part", "1.0", "0" * 64, 1)])


_FIRST_START = """
import sys
from penstock.broker import jars
wanted = [jars._jar(line) for line in sys.stdin.read().splitlines()]
sys.stdout.write("ready\\n")
for path, jar in zip(jars.fetch(wanted, repository=sys.argv[1]), wanted):
    jars.check(jar, path)
"""


def test_first_starts_at_the_same_time_do_not_harm_each_other(repository: Repository, cache: Path) -> None:
    wanted = [repository.jar(f"part{number}", bytes([number]) * 300_000) for number in range(10)]
    lines = "".join(f"{jar.group}:{jar.artifact}:{jar.version} {jar.sha256} {jar.size}\n" for jar in wanted)
    command = [sys.executable, "-W", "error", "-c", _FIRST_START, repository.url]

    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(lines)
        process.stdin.close()
        process.stdin = None
    complaints = [process.communicate(timeout=60)[1] for process in processes]

    assert [process.returncode for process in processes] == [0] * 4, complaints
    assert set(repository.asked.values()) == {1}
    assert not _leftovers(cache)


def test_a_first_start_that_is_killed_leaves_the_next_one_nothing_wrong(repository: Repository, cache: Path) -> None:
    wanted = [repository.jar(f"part{number}", bytes([number]) * 100_000) for number in range(3)]
    stalled = repository.jar("stalled", b"never")
    held = threading.Event()
    asked = threading.Event()
    slow = _Held(repository.content, stalled.name, asked, held)
    repository.content = slow
    lines = "".join(f"{j.group}:{j.artifact}:{j.version} {j.sha256} {j.size}\n" for j in [*wanted, stalled])
    command = [sys.executable, "-c", _FIRST_START, repository.url]

    with started(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(lines)
        process.stdin.close()
        assert asked.wait(60)
        process.kill()
    held.set()

    assert _leftovers(cache)
    paths = jars.fetch([*wanted, stalled], repository=repository.url)

    assert not _leftovers(cache)
    assert [path.stat().st_size for path in paths] == [jar.size for jar in [*wanted, stalled]]


class _Held(dict[str, bytes]):
    """Content of which one name is not given out until `held` is set."""

    def __init__(self, content: dict[str, bytes], name: str, asked: threading.Event, held: threading.Event) -> None:
        super().__init__(content)
        self._name, self._asked, self._held = name, asked, held

    def __contains__(self, name: object) -> bool:
        if name == self._name:
            self._asked.set()
            self._held.wait(60)
        return super().__contains__(name)
