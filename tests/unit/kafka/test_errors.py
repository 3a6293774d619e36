"""Every failure of the client becomes one error of our tree, with what happened and what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import (
    AccessDenied,
    BrokerUnavailable,
    Fenced,
    NotFound,
    PenstockError,
    Refused,
    TransactionBroken,
    TransientError,
    UsageError,
)
from penstock.kafka.errors import ConnectionWatch, error_of, served, translated

ALL_CODES = sorted(
    code
    for name, code in vars(KafkaError).items()
    if name.lstrip("_").isupper() and isinstance(code, int) and code != KafkaError.NO_ERROR
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, BrokerUnavailable),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailable),
        (KafkaError._RESOLVE, BrokerUnavailable),
        (KafkaError._AUTHENTICATION, AccessDenied),
        (KafkaError._SSL, AccessDenied),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFound),
        (KafkaError.GROUP_ID_NOT_FOUND, NotFound),
        (KafkaError.MSG_SIZE_TOO_LARGE, UsageError),
        (KafkaError.INVALID_CONFIG, UsageError),
        (KafkaError.PRODUCER_FENCED, Fenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, Fenced),
        (KafkaError._FENCED, Fenced),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, TransientError),
        (KafkaError.NOT_ENOUGH_REPLICAS, TransientError),
        (KafkaError._TIMED_OUT, TransientError),
        (KafkaError.NON_EMPTY_GROUP, Refused),
        (KafkaError._FATAL, TransactionBroken),
    ],
)
def test_a_code_has_its_kind(code: int, kind: type[PenstockError]) -> None:
    assert type(translated(KafkaError(code, "because"), "doing it")) is kind


def test_every_code_says_what_failed_why_and_what_to_do() -> None:
    assert len(ALL_CODES) > 150
    for code in ALL_CODES:
        error = KafkaError(code, "because of 7")
        told = translated(KafkaException(error), "appending to t/3")
        assert told.what == f"appending to t/3 failed: because of 7 ({error.name()})"
        assert told.next_step


def test_only_transient_kinds_may_be_retried() -> None:
    retriable = {code for code in ALL_CODES if translated(KafkaError(code, ""), "it").retriable}

    assert KafkaError._TIMED_OUT in retriable
    assert KafkaError.TOPIC_AUTHORIZATION_FAILED not in retriable
    assert KafkaError._FENCED not in retriable


def test_a_time_out_is_told_as_the_connection_trouble_behind_it() -> None:
    watch = ConnectionWatch("kafka:9092")
    silence = KafkaError(KafkaError._TIMED_OUT, "nothing came")
    assert type(translated(silence, "asking", watch=watch)) is TransientError

    watch.heard(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    watch.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 down"))
    told = translated(silence, "asking", watch=watch)
    assert type(told) is AccessDenied
    assert told.what == "asking at kafka:9092 failed: wrong password (_AUTHENTICATION)"

    watch.forget()
    assert type(translated(silence, "asking", watch=watch)) is TransientError


def test_an_answer_of_the_broker_is_not_overruled_by_an_older_trouble() -> None:
    watch = ConnectionWatch("kafka:9092")
    watch.heard(KafkaError(KafkaError._TRANSPORT, "gone for a moment"))

    assert type(translated(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "it", watch=watch)) is UsageError


def test_a_handshake_that_was_cut_short_is_no_mere_absence() -> None:
    cut = KafkaError(KafkaError._TRANSPORT, "SSL handshake failed: Disconnected")

    assert type(translated(cut, "asking")) is AccessDenied


def test_an_exception_without_an_error_inside_is_still_told() -> None:
    assert error_of(KafkaException("plain words")).str() == "plain words"
    assert error_of(KafkaException()).code() == KafkaError._FAIL


def test_a_call_that_is_served_passes_answers_and_ordinary_failures() -> None:
    assert served(lambda: 7) == 7
    with pytest.raises(KeyError):
        served(lambda: {}["absent"])
    with pytest.raises(KafkaException, match="_TRANSPORT"):
        served(lambda: _raise(KafkaException(KafkaError(KafkaError._TRANSPORT))))


def test_a_garbled_fatal_error_becomes_one_that_can_be_caught() -> None:
    with pytest.raises(KafkaException) as fatal:
        served(lambda: _raise(SystemError("returned a result with an exception set")))

    assert error_of(fatal.value).code() == KafkaError._FATAL
    assert error_of(fatal.value).fatal()


def _raise(failure: BaseException) -> None:
    raise failure
