from __future__ import annotations

import io
import json
import logging

import pytest

from penstock.cli.logs import logging_to_stderr
from penstock.observe.events import (
    AppendFailed,
    BrokerStarted,
    ClaimLost,
    MessagesAcked,
    PartitionHalted,
    RecordIgnored,
    are_heard,
    subscribed,
    tell,
)
from penstock.observe.logs import event_fields, log_event
from penstock.settings import LogSettings

STARTED = BrokerStarted(node=1, bootstrap="127.0.0.1:9092", pid=42, seconds=3.14159)
HALTED = PartitionHalted(ledger="orders", partition=3, offset=7, reason="version 2\nbegins there")


def test_an_event_is_one_line_of_the_logger_penstock(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="penstock"), subscribed(log_event):
        tell(STARTED)

    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("penstock", "INFO", "broker started node=1 bootstrap=127.0.0.1:9092 pid=42 seconds=3.142")
    ]


def test_line_breaks_and_quotes_in_a_reason_do_not_make_a_second_line(caplog: pytest.LogCaptureFixture) -> None:
    forged = AppendFailed(topic="t", partition=0, reason='no\r\nbroker started node=9 "x" \\ \x1b[31m')
    with caplog.at_level(logging.DEBUG, logger="penstock"), subscribed(log_event):
        tell(forged)

    line = caplog.records[0].getMessage()
    assert line == r'append failed topic=t partition=0 reason="no\r\nbroker started node=9 \"x\" \\ \x1b[31m"'


def test_an_event_weighs_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    ignored = RecordIgnored(ledger="orders", partition=0, offset=1, reason="junk")
    with caplog.at_level(logging.INFO, logger="penstock"), subscribed(log_event):
        tell(ignored)
        tell(HALTED)

    assert [r.levelname for r in caplog.records] == ["ERROR"]


def test_nobody_is_told_after_the_subscription_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="penstock"):
        with subscribed(log_event):
            pass
        tell(STARTED)

    assert caplog.records == []


def test_the_library_alone_configures_no_logging() -> None:
    logger = logging.getLogger("penstock")

    assert logger.handlers == []
    assert logger.level == logging.NOTSET
    assert logger.propagate


def stderr_of(settings: LogSettings, monkeypatch: pytest.MonkeyPatch) -> str:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    with logging_to_stderr(settings):
        tell(STARTED)
        tell(HALTED)
        logging.getLogger("penstock.kafka").warning("librdkafka says %s", "hello")
    return stderr.getvalue()


def test_the_command_line_writes_readable_lines_without_colour_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = stderr_of(LogSettings(level="info"), monkeypatch).splitlines()

    assert len(lines) == 3
    assert "broker started" in lines[0]
    assert "node=1" in lines[0]
    assert "librdkafka says hello" in lines[2]
    assert "\x1b" not in "".join(lines)


def test_the_command_line_writes_one_json_object_per_line_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = stderr_of(LogSettings(level="info", format="json"), monkeypatch).splitlines()

    started, halted, other = map(json.loads, lines)
    assert started["event"] == "broker started"
    assert (started["level"], started["node"], started["seconds"]) == ("info", 1, 3.14159)
    assert (halted["level"], halted["reason"]) == ("error", "version 2\nbegins there")
    assert (other["event"], other["logger"]) == ("librdkafka says hello", "penstock.kafka")
    assert all(document["timestamp"] for document in (started, halted, other))


def test_the_command_line_logs_no_less_than_its_level_and_leaves_logging_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "broker started" not in stderr_of(LogSettings(), monkeypatch)
    test_the_library_alone_configures_no_logging()


def test_the_token_of_a_claim_is_a_number_and_no_secret() -> None:
    assert event_fields(ClaimLost(slot="g/t/0", token=7, reason="expired"))["token"] == 7


@pytest.mark.parametrize(("level", "is_wanted"), [("debug", True), ("info", False), ("warning", False)])
def test_what_has_too_little_weight_for_the_log_need_not_be_told(level: str, *, is_wanted: bool) -> None:
    with logging_to_stderr(LogSettings(level=level)):
        assert are_heard(MessagesAcked) is is_wanted
        assert are_heard(PartitionHalted)
