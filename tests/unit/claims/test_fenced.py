"""Files and SQLite databases that refuse a former holder, whatever the order of events and wherever a writer dies."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.claims.fenced import FencedFile, create_fences, fenced
from penstock.crash import armed
from penstock.errors import Fenced, NotAcquired, NotFound, Refused, UsageError


class Dead(BaseException):
    """The process ended here."""


@contextmanager
def dying_at(number: int) -> Iterator[list[str]]:
    """Die at the crash point that is passed as the `number`-th; the list tells which were passed."""
    passed: list[str] = []

    def hook(name: str) -> None:
        passed.append(name)
        if len(passed) == number:
            raise Dead

    with armed(hook):
        yield passed


# Files


def test_the_holder_of_the_highest_token_writes_as_often_as_it_likes(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "report")
    assert file.token is None

    file.write("first", token=0)
    file.write(b"second", token=7)
    file.write("third", token=7)

    assert (file.read(), file.token) == (b"third", 7)


def test_a_former_holder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    FencedFile(tmp_path / "report").write("new", token=57)

    with pytest.raises(Fenced, match=r"report was written under token 57, ours is 41; stop this work"):
        FencedFile(tmp_path / "report").write("old", token=41)

    assert (tmp_path / "report").read_text() == "new"


@settings(max_examples=40)  # it waits for the disk
@given(tokens=st.lists(st.integers(0, 5), max_size=12))
def test_what_is_written_is_always_under_the_highest_token_so_far(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int]
) -> None:
    file, highest = FencedFile(tmp_path_factory.mktemp("fenced") / "report"), -1
    for token in tokens:
        if token < highest:
            with pytest.raises(Fenced):
                file.write(str(token), token=token)
        else:
            file.write(str(token), token=token)
        highest = max(highest, token)
        assert (int(file.read()), file.token) == (highest, highest)


def crash_points_of_a_write(folder: Path) -> list[str]:
    with dying_at(0) as passed:
        FencedFile(folder / "counted").write("x", token=1)
    return passed


def test_wherever_a_writer_dies_the_content_is_whole_and_no_older_token_comes_after_it(tmp_path: Path) -> None:
    points = crash_points_of_a_write(tmp_path)
    assert len(points) == 6

    contents = set()
    for number, point in enumerate(points, 1):
        file = FencedFile(tmp_path / f"report-{number}")
        file.write("old", token=41)
        with dying_at(number), pytest.raises(Dead):
            file.write("new", token=57)

        after = FencedFile(file.path)
        contents.add(after.read())
        assert after.read() in (b"old", b"new"), point
        if after.read() == b"new":
            with pytest.raises(Fenced):
                after.write("old again", token=41)
        after.write("goes on", token=57)
        assert after.read() == b"goes on", point
    assert contents == {b"old", b"new"}


def test_a_writer_that_keeps_the_token_after_the_content_is_caught(tmp_path: Path) -> None:
    """The planted bug: a crash in between lets an older token replace what a newer one wrote."""
    file = FencedFile(tmp_path / "report")
    file.write("old", token=41)

    file.path.write_text("new")  # a writer with token 57 died here, before it kept its token
    file.write("old again", token=41)

    assert file.read() == b"old again"  # so the order matters, and the test above can fail


def test_concurrent_writers_leave_the_content_of_the_highest_token(tmp_path: Path) -> None:
    accepted: list[int] = []

    def write(token: int) -> None:
        try:
            FencedFile(tmp_path / "report").write(str(token), token=token)
        except Fenced:
            return
        accepted.append(token)

    threads = [threading.Thread(target=write, args=(token,)) for token in (3, 9, 1, 7, 5, 9, 2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert FencedFile(tmp_path / "report").read() == b"9"
    assert accepted.count(9) == 2


def test_a_write_waits_no_longer_than_it_was_told(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        inside.set()
        leave.wait(60)

    slow = threading.Thread(target=FencedFile(tmp_path / "report").write, args=("slow", 1))
    with armed(hook):
        slow.start()
        assert inside.wait(60)
        with pytest.raises(NotAcquired, match=r"somebody has been writing .* for 100ms; .*fuser"):
            FencedFile(tmp_path / "report", timeout="100ms").write("fast", token=2)
        leave.set()
        slow.join()

    FencedFile(tmp_path / "report").write("fast", token=2)
    assert (tmp_path / "report").read_bytes() == b"fast"


def test_another_name_of_the_same_file_meets_the_same_fence(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    FencedFile(tmp_path / "there" / "report").write("new", token=57)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "report")

    with pytest.raises(Fenced):
        FencedFile(tmp_path / "link").write("old", token=41)


def test_the_file_keeps_its_mode(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "report")
    file.write("first", token=1)
    os.chmod(file.path, 0o640)

    file.write("second", token=1)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640


def test_a_fence_that_holds_no_token_lets_nobody_through(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "report")
    file.write("new", token=57)
    (tmp_path / ".report.fence").write_text("")

    with pytest.raises(Refused, match="holds no token"):
        file.write("old", token=41)
    assert file.read() == b"new"


@pytest.mark.parametrize("token", [-1, 2**63, True, "41", None])
def test_what_is_no_token_is_a_usage_error(tmp_path: Path, token: object) -> None:
    with pytest.raises(UsageError, match="is no token"):
        FencedFile(tmp_path / "report").write("x", token=token)  # type: ignore[arg-type]
    assert not (tmp_path / "report").exists()


# SQLite

Connect = Callable[[], sqlite3.Connection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    opened: list[sqlite3.Connection] = []

    def connected() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "orders.db", timeout=30, check_same_thread=False))
        return opened[-1]

    first = connected()
    create_fences(first)
    create_fences(first)
    first.execute("CREATE TABLE orders (id integer PRIMARY KEY, token integer)")
    first.commit()
    yield connected
    for connection in opened:
        connection.close()


def written(connection: sqlite3.Connection) -> list[int]:
    return [token for (token,) in connection.execute("SELECT token FROM orders ORDER BY id")]


def write(connection: sqlite3.Connection, token: int) -> None:
    with fenced(connection, "orders", token):
        connection.execute("INSERT INTO orders (token) VALUES (?)", (token,))


def test_writes_and_check_commit_together(connect: Connect) -> None:
    one, other = connect(), connect()
    write(one, 41)
    write(one, 41)
    write(other, 57)

    with pytest.raises(Fenced, match="orders was written under token 57, ours is 41"):
        write(one, 41)

    assert written(other) == [41, 41, 57]


def test_a_block_that_fails_leaves_neither_writes_nor_token(connect: Connect) -> None:
    connection = connect()

    def failing() -> None:
        with fenced(connection, "orders", 57):
            connection.execute("INSERT INTO orders (token) VALUES (57)")
            raise ValueError("no paper")

    with pytest.raises(ValueError, match="no paper"):
        failing()

    write(connection, 41)
    assert written(connection) == [41]


def test_resources_have_their_own_tokens(connect: Connect) -> None:
    connection = connect()
    with fenced(connection, "orders", 57), fenced(connection, "invoices", 3):
        pass
    with fenced(connection, "invoices", 4):
        pass


def test_without_the_table_it_says_what_to_do(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "empty.db")
    with pytest.raises(NotFound, match="create_fences"), fenced(connection, "orders", 1):
        pass
    connection.close()


def test_what_is_no_connection_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="psycopg 3"), fenced(object(), "orders", 1):
        pass
