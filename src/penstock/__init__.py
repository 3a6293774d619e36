"""Penstock: work done once, on the Kafka you already run.

Submodules are imported when they are first named, so that `import penstock` stays light.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import broker, errors, kafka, ledger

__version__ = "0.1.0"
__all__ = ["__version__", "broker", "errors", "kafka", "ledger"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"penstock.{name}")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
