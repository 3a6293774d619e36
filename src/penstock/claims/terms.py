"""On what terms a group consumes: what the caller asked for, checked once, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from penstock.claims.decide import Appetite
from penstock.claims.records import Slot
from penstock.errors import UsageError
from penstock.values import Duration

if TYPE_CHECKING:
    from penstock.claims.batch import Message

Delivery = Literal["at_least_once", "at_most_once"]
Share = Literal["partitions", "ranges", "all"]
Start = Literal["earliest", "latest"]
Overdue = Literal["dead_letter", "skip", "release"]
OnOverdue = Overdue | Callable[["Message"], Overdue]
Claim = Literal["partition", "topic"]
Prefer = Sequence[int] | Mapping[str, Sequence[int]]
OnLost = Callable[[Slot, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Raises UsageError for what is not on offer, with what is."""

    topics: tuple[str, ...]
    delivery: Delivery = "at_least_once"
    share: Share = "partitions"
    start: Start = "earliest"
    """Where to begin in partitions that the group never had a position in."""
    batch_max: int = 500
    outstanding_max: int = 10_000
    """How many messages may be handed out and not acked."""
    ack_timeout: Duration | None = None
    """How long a message may stay unacked after it was handed out; None: for ever."""
    on_overdue: OnOverdue = "dead_letter"
    claim: Claim = "partition"
    """What members share: partitions, or whole topics."""
    prefer: Prefer = ()
    """The partitions to ask for first and to give back last: of every topic, or by topic."""
    transactions: bool = False
    """Whether the group's committed offsets are the truth, committed with the effects; else they are for display."""
    on_lost: OnLost | None = None
    """Told slot, token and reason of a claim that passed on, in the member's thread."""

    def __post_init__(self) -> None:
        _check_topics(self.topics)
        _check_choice("delivery", self.delivery, get_args(Delivery))
        _check_choice("share", self.share, get_args(Share))
        _check_choice("start", self.start, get_args(Start))
        _check_choice("claim", self.claim, get_args(Claim))
        _check_prefer(self.prefer)
        _check_bound("batch_max", self.batch_max)
        _check_bound("outstanding_max", self.outstanding_max)
        if not callable(self.on_overdue):
            _check_choice("on_overdue", self.on_overdue, get_args(Overdue), or_else=", or a function of the message")
        if self.ack_timeout is not None:
            self._check_ack_timeout(self.ack_timeout)
        if self.share == "all" and self.delivery == "at_most_once":
            raise UsageError(
                f'share="{self.share}" is at least once only', next_step='leave share out, or use "at_least_once"'
            )

    def appetite(self, *, give_up_lag: int) -> Appetite:
        return Appetite(prefers=self._prefers, whole_topics=self.claim == "topic", give_up_lag=give_up_lag)

    def _prefers(self, slot: Slot) -> bool:
        partitions = self.prefer.get(slot.topic, ()) if isinstance(self.prefer, Mapping) else self.prefer
        return slot.partition in partitions

    def _check_ack_timeout(self, timeout: Duration) -> None:
        if timeout < 1:
            raise UsageError(f"ack_timeout {timeout} is no time at all", next_step='give "30s", or None for no limit')
        if self.delivery == "at_most_once":
            raise UsageError(
                "at most once, a message is finished before it is handed out, so that none can be overdue",
                next_step='leave ack_timeout out, or use delivery="at_least_once"',
            )


def topics_given(topics: Sequence[str]) -> tuple[str, ...]:
    """A single name would be taken for a list of letters."""
    if isinstance(topics, str):
        raise _no_topics()
    return tuple(topics)


def _check_topics(topics: tuple[str, ...]) -> None:
    if not topics or not all(topics):
        raise _no_topics()


def _no_topics() -> UsageError:
    return UsageError("topics must be a list with at least one name", next_step='write consume(["orders"])')


def _check_choice(name: str, given: object, choices: tuple[str, ...], *, or_else: str = "") -> None:
    if given not in choices:
        raise UsageError(
            f"{given!r} is no {name} of a group",
            next_step="use " + " or ".join(f'"{choice}"' for choice in choices) + or_else,
        )


def _check_prefer(prefer: object) -> None:
    lists = list(prefer.values()) if isinstance(prefer, Mapping) else [prefer]
    if not all(isinstance(given, Sequence) and all(isinstance(each, int) for each in given) for given in lists):
        raise UsageError(f"prefer is {prefer!r}", next_step='write prefer=[0, 3], or prefer={"orders": [0, 3]}')


def _check_bound(name: str, given: object) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise UsageError(f"{name} is {given!r}", next_step="use a whole number from 1 on")
