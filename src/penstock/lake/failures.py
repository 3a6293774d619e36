"""Why a stream ended, in our words: Java's causes say what may pass and what stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import AccessDenied, BrokerUnavailable, Gap, PenstockError, Refused, StreamFailed

_PASSING = ("TimeoutException", "DisconnectException", "NetworkException", "RetriableException")
_DENIED = ("AuthorizationException", "AuthenticationException")

# A batch's entry in the logs of a checkpoint, or Spark's temporary file for it.
_ENTRY = re.compile(r"/(offsets|commits)/[.]?\d+\b")

Cause = tuple[str, str]


def causes(java: Any) -> list[Cause]:
    """Java's exception and what caused it: simple class name and message of each."""
    return list(_causes(java))


def told_failure(chain: list[Cause], raised: BaseException | None, *, gap: Callable[[], Gap | None]) -> PenstockError:
    """The failure of a stream: what our own code raised, else what the chain of causes amounts to.

    `gap` looks for messages that Kafka no longer has, where Spark says that data may be lost.
    """
    if isinstance(raised, PenstockError):
        return raised
    text = _innermost(chain) or str(raised or "no reason was given")
    if any(name.endswith(_DENIED) for name, _ in chain):
        return AccessDenied(f"Kafka refuses the lake: {text}", next_step="check the credentials in [kafka.client]")
    if any(name.endswith(_PASSING) for name, _ in chain):
        return BrokerUnavailable(f"Kafka did not answer Spark: {text}", next_step="check it with `penstock doctor`")
    if any(_speaks_of_another(name, message) for name, message in chain):
        return Refused(
            f"another stream writes to the same checkpoint: {text}",
            next_step="let one of the two run; every app_id needs a checkpoint of its own",
        )
    if any(_speaks_of_loss(message) for _, message in chain):
        found = gap()
        if found is not None:
            return found
    return StreamFailed(
        f"Spark ended the stream: {text}",
        details="\n".join(f"{name}: {message}" for name, message in chain),
        next_step="`penstock doctor --lake` checks what it needs; the table is as its last commit left it",
    )


def _speaks_of_another(name: str, message: str) -> bool:
    """Whether somebody else wrote the batch's own entry of the checkpoint: Spark looks first, then the file system."""
    is_there = name == "FileAlreadyExistsException" or "already exists" in message
    return (
        "CONCURRENT_STREAM_LOG_UPDATE" in message
        or "oncurrent update to the log" in message
        or (is_there and _ENTRY.search(message) is not None)
    )


def _speaks_of_loss(message: str) -> bool:
    lowered = message.lower()
    return any(words in lowered for words in ("data loss", "data_loss", "may have been missed", "may have been lost"))


def _innermost(chain: list[Cause]) -> str:
    message = next((message for _, message in reversed(chain) if message), "")
    return message.splitlines()[0] if message else ""


def _causes(java: Any) -> Iterator[Cause]:
    seen = 0
    while java is not None and seen < 20:
        yield java.getClass().getSimpleName(), java.getMessage() or ""
        java, seen = java.getCause(), seen + 1
