"""Why a stream ended, from Java's chain of causes."""

from __future__ import annotations

import pytest

from penstock.errors import AccessDenied, BrokerUnavailable, Fenced, Gap, PenstockError, Refused, StreamFailed
from penstock.lake.failures import Cause, told_failure

GAP = Gap(topic="orders", partition=0, first=3, last=4)


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        (
            [("StreamingQueryException", "failed"), ("TimeoutException", "Timed out waiting for a node")],
            BrokerUnavailable,
        ),
        ([("StreamingQueryException", ""), ("TopicAuthorizationException", "Not authorized")], AccessDenied),
        ([("SaslAuthenticationException", "invalid credentials")], AccessDenied),
        ([("SparkException", "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.")], Refused),
        (
            [("FileAlreadyExistsException", "Rename destination file:/lake/a/offsets/1 already exists.")],
            Refused,
        ),
        ([("FileAlreadyExistsException", "file:/lake/_checkpoints/app/commits/.17.tmp already exists")], Refused),
        ([("FileAlreadyExistsException", "file:/lake/part-1.parquet already exists")], StreamFailed),
        ([("KafkaIllegalStateException", "some data may have been missed")], Gap),
        ([("KafkaIllegalStateException", "[KAFKA_DATA_LOSS.START_OFFSET_RESET] …")], Gap),
        ([("NullPointerException", "")], StreamFailed),
    ],
)
def test_causes_become_errors_that_say_whether_to_try_again(chain: list[Cause], kind: type[PenstockError]) -> None:
    told = told_failure(chain, None, gap=lambda: GAP)

    assert type(told) is kind
    assert told.retriable is (kind is BrokerUnavailable)


def test_what_our_own_code_raised_is_the_failure_whatever_java_makes_of_it() -> None:
    ours = Fenced("another writer")

    assert told_failure([("TimeoutException", "late")], ours, gap=lambda: None) is ours


def test_loss_that_nobody_can_find_is_told_as_spark_told_it() -> None:
    told = told_failure([("SparkException", "data loss\nat line two")], None, gap=lambda: None)

    assert isinstance(told, StreamFailed)
    assert told.what == "Spark ended the stream: data loss"
    assert "SparkException" in told.details
