"""The thread that drives a member, when something ends it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.claims import running as running_module
from penstock.claims.running import Running
from penstock.errors import InvariantBroken, PenstockError, Refused
from penstock.settings import Settings

BUG = KeyError("what is this")


def fail(failure: Exception) -> Callable[..., Any]:
    def failing(*_: object) -> None:
        raise failure

    return failing


def ended(
    monkeypatch: pytest.MonkeyPatch,
    *,
    step: Callable[..., Any] = lambda timeout_ms: None,
    on_step: Callable[..., Any] | None = None,
    close: Callable[..., Any] = lambda: None,
) -> PenstockError | None:
    """What the thread says when it has ended."""
    monkeypatch.setattr(running_module, "opened_tail", lambda *_: SimpleNamespace(close=close))
    member: Any = SimpleNamespace(want=lambda slots: None, step=step, holds=0)
    running: Running[Any] = Running(Settings(), lambda tail: member, client="c", on_step=on_step)
    running.start([])
    running._thread.join(60)
    assert not running._thread.is_alive()
    return running.failure


@pytest.mark.parametrize("where", ["step", "on_step"])
def test_a_bug_is_told_to_whoever_asks_for_the_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    failure = ended(monkeypatch, **{where: fail(BUG)})

    assert isinstance(failure, InvariantBroken)
    assert failure.__cause__ is BUG
    assert str(failure) == "coordination stopped: KeyError: 'what is this'; please report it, with the log"
    assert [record.getMessage() for record in caplog.records] == ["coordination stopped by a bug"]
    assert caplog.records[0].exc_info is not None


def test_a_bug_while_the_log_is_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "opened_tail", fail(BUG))
    running: Running[Any] = Running(Settings(), lambda tail: None, client="c")
    running.start([])
    running._thread.join(60)

    assert running.failure is not None
    assert running.failure.__cause__ is BUG


@pytest.mark.parametrize("failure", [Refused("no"), BUG])
def test_what_goes_wrong_at_the_end_does_not_hide_what_ended_it(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    found = ended(monkeypatch, step=fail(failure), close=fail(ValueError("closing")))

    assert failure in (found, found and found.__cause__)


def test_the_failure_is_known_before_the_log_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[PenstockError | None] = []
    monkeypatch.setattr(
        running_module, "opened_tail", lambda *_: SimpleNamespace(close=lambda: known.append(running.failure))
    )
    member: Any = SimpleNamespace(want=lambda slots: None, step=fail(BUG), holds=0)
    running: Running[Any] = Running(Settings(), lambda tail: member, client="c")
    running.start([])
    running._thread.join(60)

    assert known == [running.failure] != [None]


def test_a_bug_at_the_end_is_told_where_nothing_else_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "opened_tail", lambda *_: SimpleNamespace(close=fail(BUG)))
    member: Any = SimpleNamespace(want=lambda slots: None, step=lambda timeout_ms: None, holds=0)
    running: Running[Any] = Running(Settings(), lambda tail: member, client="c")
    running.start([])
    running.stop(within_s=60)

    assert running.failure is not None
    assert running.failure.__cause__ is BUG
