"""An application whose queues and jobs are named by several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.errors import UsageError
from penstock.settings import KafkaSettings, Settings


@pytest.fixture
def app() -> penstock.App:
    return penstock.App("shop", settings=Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1")))


class Interrupted(dict[str, Any]):
    """While one thread looks at it, another does something."""

    def __init__(self, meanwhile: Any) -> None:
        super().__init__()
        self._meanwhile = threading.Thread(target=meanwhile, daemon=True)
        self._looker = threading.current_thread()

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._interrupt()
        return found

    def values(self) -> Any:
        return self._interrupted(super().values())

    def end(self) -> None:
        self._meanwhile.join(60)
        assert not self._meanwhile.is_alive()

    def _interrupted(self, values: Any) -> Iterator[Any]:
        for value in values:
            self._interrupt()
            yield value

    def _interrupt(self) -> None:
        if threading.current_thread() is self._looker and self._meanwhile.ident is None:
            self._meanwhile.start()
            # It has to wait for us, unless something is wrong.
            self._meanwhile.join(0.5)


def test_queues_may_be_named_while_they_are_looked_at(app: penstock.App) -> None:
    app._queues = queues = Interrupted(lambda: app.queue("others"))
    queues["orders"] = app.__class__("shop", settings=app.settings).queue("orders")
    with pytest.raises(UsageError, match="app shop has no handler"):
        app.check_workable()

    queues.end()
    assert [*queues] == ["orders", "others"]


def test_of_two_threads_that_name_one_queue_one_is_refused(app: penstock.App) -> None:
    refused: list[UsageError] = []

    def name_too() -> None:
        try:
            app.queue("orders")
        except UsageError as refusal:
            refused.append(refusal)

    app._queues = queues = Interrupted(name_too)
    app.queue("orders")

    queues.end()
    assert len(refused) == 1


def test_of_two_threads_that_name_one_job_one_is_refused(app: penstock.App) -> None:
    refused: list[UsageError] = []

    def name_too() -> None:
        try:
            app.every("1h", name="report")(print)
        except UsageError as refusal:
            refused.append(refusal)

    app._jobs = jobs = Interrupted(name_too)
    app.every("1h", name="report")(print)

    jobs.end()
    assert len(refused) == 1


def test_jobs_may_be_named_while_they_are_looked_at(app: penstock.App) -> None:
    app._jobs = jobs = Interrupted(lambda: app.every("1h", name="others")(print))
    jobs["report"] = penstock.App("shop", settings=app.settings)._job(
        print, name="report", every="1h", delivery="at_least_once"
    )
    app.jobs()

    jobs.end()
    assert [*jobs] == ["report", "others"]
