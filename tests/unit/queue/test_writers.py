"""The producers of a process, replaced when they give up."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.queue import writers as writers_module
from penstock.queue.writers import Writers
from penstock.settings import KafkaSettings


class Spent:
    """A producer that gives up as soon as it is used, and calls somebody back when it is closed."""

    made: list[Spent]

    def __init__(self, *_: object, **__: object) -> None:
        self.is_broken = not self.made
        self.made.append(self)
        self.on_close: Any = lambda: None

    def close(self, timeout_ms: int) -> int:
        self.on_close()
        return 0


def test_whoever_is_called_back_by_a_producer_that_gave_up_may_send(monkeypatch: pytest.MonkeyPatch) -> None:
    Spent.made = []
    monkeypatch.setattr(writers_module, "ReportingWriter", Spent)
    writers = Writers(KafkaSettings())
    found: list[object] = []
    called_back = threading.Thread(target=lambda: found.append(writers.get("replicated")), daemon=True)
    spent: Any = writers.get("replicated")

    def on_close() -> None:
        called_back.start()
        called_back.join(10)
        found.append("closed")

    spent.on_close = on_close
    fresh = writers.get("replicated")

    assert (fresh, found) == (Spent.made[1], [fresh, "closed"])
