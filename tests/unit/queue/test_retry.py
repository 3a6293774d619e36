from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Undecodable, UsageError
from penstock.queue.records import ERROR_BYTES_MAX
from penstock.queue.retry import Backoff, RetryRules, after_failure, error_class, error_text, retry_rules
from penstock.values import duration

RULES = RetryRules(attempts_max=3)


def test_the_back_off_doubles_from_a_second_to_ten_minutes() -> None:
    delays = [Backoff().delay_ms(attempt, 0.0) for attempt in (1, 2, 3, 10, 11, 1_000)]

    assert delays == [1_000, 2_000, 4_000, 512_000, 600_000, 600_000]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_chance_takes_at_most_half_of_it_away(attempt: int, chance: float) -> None:
    whole_ms = Backoff().delay_ms(attempt, 0.0)

    assert whole_ms // 2 <= Backoff().delay_ms(attempt, chance) <= whole_ms


def test_a_failure_is_an_attempt_until_the_last_one_which_buries() -> None:
    outcomes = [after_failure(ValueError("no"), attempt=attempt, rules=RULES, chance=0) for attempt in (1, 2, 3)]

    assert [outcome.kind for outcome in outcomes] == ["released", "released", "buried"]
    assert [outcome.delay_ms for outcome in outcomes] == [1_000, 2_000, 0]
    assert outcomes[0].counts
    assert outcomes[2].reason == "attempts used up"
    assert outcomes[2].error.startswith("builtins.ValueError: no")


def test_a_message_that_may_be_tried_once_is_buried_by_its_first_failure() -> None:
    assert after_failure(ValueError(), attempt=1, rules=RetryRules(attempts_max=1), chance=0).kind == "buried"


def test_errors_that_are_given_up_on_and_undecodable_payloads_are_buried_at_once() -> None:
    rules = RetryRules(give_up_on=(LookupError,))

    assert after_failure(KeyError(), attempt=1, rules=rules, chance=0).reason == "given up"
    assert after_failure(Undecodable("no JSON"), attempt=1, rules=rules, chance=0).reason == "undecodable"
    assert after_failure(ValueError(), attempt=1, rules=rules, chance=0).kind == "released"


def test_the_back_off_of_the_nearest_type_of_error_counts() -> None:
    rules = retry_rules(
        attempts_max=5,
        first=duration("1s"),
        most=duration("10m"),
        backoff_of={OSError: "5s", ConnectionError: Backoff("2s", "1m")},
    )

    def delays(failure: Exception) -> list[int]:
        return [after_failure(failure, attempt=attempt, rules=rules, chance=0).delay_ms for attempt in (1, 2)]

    assert delays(ConnectionResetError()) == [2_000, 4_000]
    assert delays(FileNotFoundError()) == [5_000, 5_000]
    assert delays(ValueError()) == [1_000, 2_000]


def test_what_is_no_type_of_error_is_refused() -> None:
    with pytest.raises(UsageError, match="no type of error"):
        retry_rules(attempts_max=5, first=duration("1s"), most=duration("1s"), give_up_on=(ValueError(),))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="back-off"):
        Backoff("2s", "1s")


def fail_deeply(depth: int, text: str) -> None:
    if depth:
        fail_deeply(depth - 1, text)
    raise RuntimeError(text)


@given(st.text(max_size=5_000))
def test_the_text_of_an_error_names_class_message_and_place_in_at_most_four_kilobytes(text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        fail_deeply(30, text)

    written = error_text(caught.value)

    assert len(written.encode()) <= ERROR_BYTES_MAX
    assert error_class(written) == "builtins.RuntimeError"
    assert "fail_deeply" in written


def test_an_error_that_cannot_say_what_it_is_has_a_text_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert "<no text: ValueError>" in error_text(Mute())


@pytest.mark.parametrize("text", ["", "lost 3 times", "no class here: really", "\n: "])
def test_a_text_that_is_no_error_names_no_class(text: str) -> None:
    assert error_class(text) == ""
