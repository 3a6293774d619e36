"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell that starts us in the background lets us ignore Ctrl-C, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
