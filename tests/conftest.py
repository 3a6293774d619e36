"""What holds for every test."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The limit in pyproject.toml ends a test that waits in Python, once. One that hangs in a library, or after that in
# what it tidies up, is out of its reach: such a one ends with its whole process, and says where it hung.
HANGS_AFTER_S = 660
TIDYING_HANGS_AFTER_S = 200
LONG_HANGS_AFTER_S = 4_000


class Watch:
    """Says what fails and what hangs at once: a run that is cut off before its end would say nothing of it."""

    def __init__(self) -> None:
        # Before a test begins; then what is written there is held back in a file.
        self._told_to = os.dup(2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        limit_s = LONG_HANGS_AFTER_S if item.get_closest_marker("long") else HANGS_AFTER_S
        faulthandler.dump_traceback_later(limit_s, exit=True, file=self._told_to)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        faulthandler.dump_traceback_later(TIDYING_HANGS_AFTER_S, exit=True, file=self._told_to)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
            text = f"\nfailed: {report.nodeid}\n{report.longreprtext[-6_000:]}\n"
            os.write(self._told_to, text.encode(errors="replace"))


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts us in the background lets us ignore Ctrl-C, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Watch())
    # How long an example takes says how busy the machine is.
    usual = settings.get_profile(settings.get_current_profile_name())
    settings.register_profile("patient", usual, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
