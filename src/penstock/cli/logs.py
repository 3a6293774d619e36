"""How the command line logs: readable lines, or JSON with `--log-format json`; always to stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict, Processor

from penstock.observe.events import subscribed
from penstock.observe.logs import is_logged, log_event, logger
from penstock.settings import LogSettings


@contextmanager
def logging_to_stderr(settings: LogSettings) -> Iterator[None]:
    """Log the events of Penstock, and what it logs through `logging`, as these settings say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(settings.format))
    before, propagated = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(settings.level.upper())
    logger.propagate = False
    try:
        with subscribed(log_event, hears=is_logged):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated


def _formatter(log_format: str) -> logging.Formatter:
    if log_format == "json":
        last: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        clock = structlog.processors.TimeStamper(fmt="iso", utc=True)
    else:
        colors = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        last = [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)]
        clock = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, clock],
        processors=[_with_event_fields, structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _with_event_fields(_logger: object, _method: str, line: EventDict) -> EventDict:
    """An event of ours becomes fields of its own instead of text."""
    record: logging.LogRecord = line["_record"]
    if hasattr(record, "penstock_event"):
        line["event"] = record.penstock_event
        line.update({name: _plain(value) for name, value in getattr(record, "penstock_fields", {}).items()})
    return line


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
