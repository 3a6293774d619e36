"""Penstock: work done once, on the Kafka you already run.

Submodules are imported when they are first named, so that `import penstock` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import broker, claims, errors, kafka, lake, ledger, queue
    from penstock.app import App, lock, once
    from penstock.queue.message import Batch, Bury, Message, Retry
    from penstock.queue.outgoing import Outgoing
    from penstock.queue.retry import Backoff

__version__ = "0.1.0"
__all__ = [
    "App",
    "Backoff",
    "Batch",
    "Bury",
    "Message",
    "Outgoing",
    "Retry",
    "__version__",
    "broker",
    "claims",
    "errors",
    "kafka",
    "lake",
    "ledger",
    "lock",
    "once",
    "queue",
]

_FROM = {
    "App": "penstock.app",
    "Backoff": "penstock.queue.retry",
    "Batch": "penstock.queue.message",
    "Bury": "penstock.queue.message",
    "Message": "penstock.queue.message",
    "Outgoing": "penstock.queue.outgoing",
    "Retry": "penstock.queue.message",
    "lock": "penstock.app",
    "once": "penstock.app",
}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    if name in __all__:
        return importlib.import_module(f"penstock.{name}")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
