"""How a user's handler is called: what its parameters ask for, and what its answers mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from penstock.errors import UsageError
from penstock.queue.hand import ACKED, Outcome
from penstock.queue.message import Batch, Bury, Message, Retry
from penstock.queue.payload import Decoder, decoder
from penstock.queue.retry import ASKED_FOR, LOST_TOO_OFTEN, RetryRules, after_failure, again

Handler = Callable[..., Any]

_PAYLOAD, _MESSAGE = "payload", "message"

# A tuple: a union of types would be made anew for every message.
_NOT_ACKED = (Retry, Bury)
_KINDS = {*_NOT_ACKED}


class Call(NamedTuple):
    """A handler, and what it wants to be given."""

    function: Handler
    name: str
    is_async: bool
    wants: tuple[str, ...]
    decode: Decoder
    batch: int | None

    def arguments(self, given: Message | Batch) -> list[Any]:
        """Raises Undecodable."""
        payload = "payload" if isinstance(given, Message) else "payloads"
        return [given if each is _MESSAGE else getattr(given, payload) for each in self.wants]


def call_of(function: Handler, *, batch: int | None) -> Call:
    """Read a handler's signature. Raises UsageError for one that cannot be called.

    A parameter that is annotated with Message (or Batch), or called `message` (or `messages`), gets just that; the
    other one gets the payload, as its annotation says.
    """
    name = getattr(function, "__qualname__", repr(function))
    hints = _hints(function)
    wants: list[str] = []
    kind: Any = Any
    for parameter in _positional(function, name):
        annotation = hints.get(parameter.name, Any)
        if _is_message(parameter.name, annotation, batch):
            wants.append(_MESSAGE)
        else:
            wants.append(_PAYLOAD)
            kind = _of_one(annotation, name, batch)
    if not wants or wants.count(_PAYLOAD) > 1 or wants.count(_MESSAGE) > 1:
        raise UsageError(f"handler {name} cannot be called with a message", next_step=_example(batch))
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )
    return Call(function, name, is_async, tuple(wants), decoder(kind), batch)


def _positional(function: Handler, name: str) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as failure:
        raise UsageError(f"{name} is no function with a signature", next_step="give a def or async def") from failure
    needed = [
        each
        for each in parameters
        if each.default is inspect.Parameter.empty
        and each.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if any(each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        raise UsageError(f"handler {name} wants more than a message", next_step="give what else it needs a default")
    return needed


def _hints(function: Handler) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return get_type_hints(target)
    except (NameError, TypeError, AttributeError) as failure:
        raise UsageError(
            f"the types of {getattr(function, '__qualname__', function)} cannot be found: {failure}",
            next_step="import them at the top of the module, not only for the type checker",
        ) from failure


def _is_message(name: str, annotation: Any, batch: int | None) -> bool:
    if annotation is Any:
        return name in (("message",) if batch is None else ("messages", "batch"))
    if batch is not None and get_args(annotation) == (Message,):
        return True
    return annotation is (Message if batch is None else Batch)


def _of_one(annotation: Any, name: str, batch: int | None) -> Any:
    """The type of one payload."""
    if batch is None or annotation in (Any, list):
        return Any if annotation is list else annotation
    origin = get_origin(annotation)
    if origin is list or (isinstance(origin, type) and issubclass(list, origin)):
        return (*get_args(annotation), Any)[0]
    raise UsageError(f"handler {name} gets many messages at once", next_step=_example(batch))


def _example(batch: int | None) -> str:
    return (
        "write def handle(order: Order), def handle(message: Message) or with both"
        if batch is None
        else "write def handle(orders: list[Order]), def handle(messages: Batch) or with both"
    )


# Answers


def outcome_of(answer: object, *, attempt: int, rules: RetryRules, chance: float) -> Outcome:
    """What a handler's return value means for its message: all but Retry and Bury is an ack."""
    if isinstance(answer, Retry):
        delay_ms = rules.backoff.delay_ms(attempt, chance) if answer.after is None else int(answer.after)
        return again(delay_ms, attempt=attempt, rules=rules, error="the handler asked for a retry")
    if isinstance(answer, Bury):
        # The words for what no handler decided are taken.
        is_ours = answer.reason == LOST_TOO_OFTEN
        return Outcome("buried", reason=f"{ASKED_FOR}: {answer.reason}" if is_ours else answer.reason or ASKED_FOR)
    return ACKED


def outcome_of_failure(failure: BaseException, *, attempt: int, rules: RetryRules, chance: float) -> Outcome:
    if isinstance(failure, Retry | Bury):
        return outcome_of(failure, attempt=attempt, rules=rules, chance=chance)
    return after_failure(failure, attempt=attempt, rules=rules, chance=chance)


def answers_of(answer: object, count: int) -> dict[int, Retry | Bury]:
    """The messages of a batch that are not acked, by their number in it, in order. Raises UsageError."""
    if answer is None:
        return {}
    if isinstance(answer, Retry | Bury):
        return dict.fromkeys(range(count), answer)
    if isinstance(answer, Mapping) and _are_numbers(answer, count):
        numbers = sorted(answer)
        if isinstance(answer, dict) and numbers == list(answer) and set(map(type, answer.values())) <= _KINDS:
            return answer
        return {number: each for number in numbers if isinstance(each := answer[number], _NOT_ACKED)}
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes) and len(answer) == count:
        given = [(number, each) for number, each in enumerate(answer) if each is not None]
        return {number: each for number, each in given if isinstance(each, _NOT_ACKED)}
    raise UsageError(
        f"the handler answered {answer!r:.80} to a batch of {count}",
        next_step="return None, a list with an answer (None, Retry, Bury) for each message, or a dict of those that"
        " are not acked by their number in the batch",
    )


def _are_numbers(given: Mapping[Any, object], count: int) -> bool:
    """Whether all are numbers of messages in a batch of so many."""
    is_int = all(issubclass(kind, int) for kind in set(map(type, given)))
    return is_int and (not given or (min(given) >= 0 and max(given) < count))
