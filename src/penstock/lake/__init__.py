"""The lake: Kafka to Delta tables on Spark, exactly once, with the offsets in the table.

Spark is imported when `Pipeline` is first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.lake.options import LakeOptions
    from penstock.lake.pipeline import Pipeline, Progress

__all__ = ["LakeOptions", "Pipeline", "Progress"]

_FROM = {"LakeOptions": "options", "Pipeline": "pipeline", "Progress": "pipeline"}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(f"penstock.lake.{_FROM[name]}"), name)
    raise AttributeError(f"module 'penstock.lake' has no attribute {name!r}")
