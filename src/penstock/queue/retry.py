"""What becomes of a message whose handler failed: when it is tried again, and when no more. Pure: chance comes in.

failed, attempts left        released, counted, for a time that doubles with every attempt
failed for the last time     buried: "attempts used up"
an error given up on         buried: "given up"
undecodable                  buried: "undecodable"; to read it again does not help
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from penstock.errors import Undecodable, UsageError
from penstock.queue.hand import Outcome
from penstock.queue.records import ERROR_BYTES_MAX
from penstock.values import Duration, DurationLike, duration

USED_UP = "attempts used up"
GIVEN_UP = "given up"
UNDECODABLE = "undecodable"
LOST_TOO_OFTEN = "lost too often"
ASKED_FOR = "asked for"
"""Stands for whatever reason a handler gave, where reasons are counted."""
REASONS = frozenset({USED_UP, GIVEN_UP, UNDECODABLE, LOST_TOO_OFTEN, ASKED_FOR})

_FRAMES_MAX = 8
_MESSAGE_MAX_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a message is tried again: `first`, doubled after every attempt, never beyond `most`."""

    first: DurationLike = "1s"
    most: DurationLike = "10m"

    def __post_init__(self) -> None:
        if duration(self.first) > duration(self.most):
            raise UsageError(
                f"a back-off cannot begin with {duration(self.first)} and be {duration(self.most)} at most",
                next_step="make `most` as long as `first`, or longer",
            )

    def delay_ms(self, attempt: int, chance: float) -> int:
        """After this attempt (the first is 1) failed. `chance`, from 0 to 1, takes up to half of it away."""
        whole_ms = min(duration(self.most), duration(self.first) << min(attempt - 1, 62))
        # Messages that failed together would come again together; spread them out.
        return round(whole_ms * (1 - chance / 2))


BackoffLike = Backoff | DurationLike
"""A time alone is waited for after every attempt, without doubling."""


def backoff(given: BackoffLike) -> Backoff:
    return given if isinstance(given, Backoff) else Backoff(given, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    attempts_max: int = 5
    backoff: Backoff = Backoff()
    backoff_of: Mapping[type[BaseException], Backoff] = field(default_factory=dict)
    """For single types of errors, and those derived from them: the nearest counts."""
    give_up_on: tuple[type[BaseException], ...] = ()

    def backoff_for(self, failure: BaseException) -> Backoff:
        for kind in type(failure).__mro__:
            if kind in self.backoff_of:
                return self.backoff_of[kind]
        return self.backoff


def after_failure(failure: BaseException, *, attempt: int, rules: RetryRules, chance: float) -> Outcome:
    """What becomes of a message whose attempt of this number ended so."""
    error = error_text(failure)
    if isinstance(failure, Undecodable):
        return Outcome("buried", reason=UNDECODABLE, error=error)
    if isinstance(failure, rules.give_up_on):
        return Outcome("buried", reason=GIVEN_UP, error=error)
    return again(rules.backoff_for(failure).delay_ms(attempt, chance), attempt=attempt, rules=rules, error=error)


def again(delay_ms: int, *, attempt: int, rules: RetryRules, error: str) -> Outcome:
    """Once more after this time, unless it was tried often enough."""
    if attempt >= rules.attempts_max:
        return Outcome("buried", reason=USED_UP, error=error)
    return Outcome("released", delay_ms=delay_ms, counts=True, error=error)


def error_text(failure: BaseException) -> str:
    """`module.Class: message`, then the innermost frames; at most 4 KB, as a ledger keeps it."""
    kind = type(failure)
    head = _cut(f"{kind.__module__}.{kind.__qualname__}: {_said_by(failure)}", _MESSAGE_MAX_BYTES)
    frames = "".join(traceback.format_list(traceback.extract_tb(_users_part(failure.__traceback__))[-_FRAMES_MAX:]))
    room = ERROR_BYTES_MAX - len(head.encode()) - 1
    return f"{head}\n{frames.encode(errors='replace')[-room:].decode(errors='ignore')}".rstrip()


def error_class(error: str) -> str:
    """The class in such a text; empty if there is none."""
    name, colon, _ = error.partition("\n")[0].partition(": ")
    return name if colon and name.replace(".", "").replace("_", "").replace("<locals>", "").isalnum() else ""


def _said_by(failure: BaseException) -> str:
    try:
        return str(failure)
    except Exception as another:  # noqa: BLE001 - whatever a user's class does in its __str__
        return f"<no text: {type(another).__name__}>"


def _cut(text: str, bytes_max: int) -> str:
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of ours that called the handler."""
    found = trace
    while found is not None and found.tb_frame.f_globals.get("__name__", "").startswith("penstock.queue."):
        found = found.tb_next
    return found or trace


def retry_rules(
    *,
    attempts_max: int,
    first: Duration,
    most: Duration,
    backoff_of: Mapping[type[BaseException], BackoffLike] | None = None,
    give_up_on: tuple[type[BaseException], ...] = (),
) -> RetryRules:
    """Rules as a queue is told them. Raises UsageError."""
    kinds: list[object] = [*(backoff_of or {}), *give_up_on]
    wrong = [kind for kind in kinds if not (isinstance(kind, type) and issubclass(kind, BaseException))]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no type of error", next_step="give classes, as in give_up_on=(ValueError,)")
    return RetryRules(
        attempts_max=attempts_max,
        backoff=Backoff(first, most),
        backoff_of={kind: backoff(given) for kind, given in (backoff_of or {}).items()},
        give_up_on=give_up_on,
    )
