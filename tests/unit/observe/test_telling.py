"""Events are told to all who listen, whatever one of them does."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest

from penstock.observe.events import Event, TopicMissing, are_heard, subscribed, tell

MISSING = TopicMissing(group="g", topic="t")


def test_a_listener_that_fails_is_logged_and_neither_the_others_nor_who_tells_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Event] = []

    def fail(event: Event) -> None:
        raise ValueError("full")

    with subscribed(heard.append), subscribed(fail), subscribed(heard.append):
        tell(MISSING)

    assert heard == [MISSING, MISSING]
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == (
        "penstock.observe",
        logging.ERROR,
        "a listener failed at TopicMissing",
    )
    assert record.exc_text is not None
    assert "ValueError: full" in record.exc_text


def test_who_leaves_while_an_event_is_told_takes_nobody_else_with_it() -> None:
    heard: list[Event] = []
    with ExitStack() as leaving:
        leaving.enter_context(subscribed(lambda event: leaving.close()))
        with subscribed(heard.append):
            tell(MISSING)
            tell(MISSING)

    assert heard == [MISSING, MISSING]
    assert not are_heard(Event)


def test_of_one_that_listens_twice_one_subscription_ends_at_a_time() -> None:
    heard: list[Event] = []
    with subscribed(heard.append):
        with subscribed(heard.append):
            pass
        tell(MISSING)

    assert heard == [MISSING]


def test_who_says_what_it_wants_hears_nothing_else() -> None:
    heard: list[Event] = []
    with subscribed(heard.append, hears=lambda kind: kind is TopicMissing):
        tell(Event())
        tell(MISSING)
        assert are_heard(TopicMissing)
        assert are_heard(Event, TopicMissing)
        assert not are_heard(Event)

    assert heard == [MISSING]
    assert not are_heard(TopicMissing)
