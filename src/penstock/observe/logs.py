"""The listener that logs: every event is one line of the logger "penstock", as in `broker started node=1 pid=4711`.

It configures nothing. Programs that use Penstock see the lines where they see their other logs.
"""

from __future__ import annotations

import logging
import re
from dataclasses import fields

from penstock.observe.events import Event
from penstock.settings import MASK, is_secret

logger = logging.getLogger("penstock")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLAIN = re.compile(r"[^\s\"'=]+")


def log_event(event: Event) -> None:
    """Log an event with its weight; handlers find its parts in `penstock_event` and `penstock_fields` of the record."""
    if is_logged(type(event)):
        name, values = event_name(event), event_fields(event)
        logger.log(
            _LEVELS[event.level], "%s", line(name, values), extra={"penstock_event": name, "penstock_fields": values}
        )


def is_logged(kind: type[Event]) -> bool:
    """Whether events of that kind have enough weight to be logged."""
    return logger.isEnabledFor(_LEVELS[kind.level])


def event_name(event: Event) -> str:
    """`BrokerStarted` is "broker started"."""
    return _WORD_START.sub(" ", type(event).__name__).lower()


def event_fields(event: Event) -> dict[str, object]:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    # The token of a claim or a lease is a number, and no secret.
    return {name: MASK if is_secret(name) and isinstance(value, str) else value for name, value in values.items()}


def line(name: str, values: dict[str, object]) -> str:
    return " ".join([name, *(f"{key}={_quoted(value)}" for key, value in values.items())])


def _quoted(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    # One event, one line, whatever is in it: also a reason that a broker sent with line breaks.
    return text if _PLAIN.fullmatch(text) else _escaped(text)


def _escaped(text: str) -> str:
    """In quotes, with line breaks and other control characters escaped."""
    escaped = "".join(c if c.isprintable() and c not in '"\\' else c.encode("unicode_escape").decode() for c in text)
    return '"' + escaped.replace('"', '\\"') + '"'
