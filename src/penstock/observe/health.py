"""Is this process well? Named checks, and a small HTTP server that answers `/healthz`, `/readyz` and `/metrics`.

`/healthz` asks only the checks of liveness (a restart would help), `/readyz` asks all (may it get work now?).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple

Check = Callable[[], str | None]
"""Says what is wrong, or None if all is well. It must answer at once: it reads what is known, it asks nobody."""

LOOPBACK = "127.0.0.1"
REQUEST_TIMEOUT_S = 5


class Report(NamedTuple):
    is_well: bool
    checks: Mapping[str, str]
    """Name of each check, and "ok" or what is wrong."""


class Health:
    """The checks of one process. Threads may add, remove and ask at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, tuple[Check, bool]] = {}

    def add(self, name: str, check: Check, *, liveness: bool = False) -> None:
        with self._lock:
            self._checks[name] = (check, liveness)

    def remove(self, name: str) -> None:
        with self._lock:
            self._checks.pop(name, None)

    def alive(self) -> Report:
        return self._report(liveness_only=True)

    def ready(self) -> Report:
        return self._report(liveness_only=False)

    def _report(self, *, liveness_only: bool) -> Report:
        with self._lock:
            asked = {name: check for name, (check, liveness) in self._checks.items() if liveness or not liveness_only}
        wrong = {name: _answer(check) for name, check in asked.items()}
        return Report(not any(wrong.values()), {name: text or "ok" for name, text in wrong.items()})


def _answer(check: Check) -> str | None:
    try:
        return check()
    except Exception as failure:  # noqa: BLE001 - whatever a check raises is its answer
        return f"the check itself failed: {type(failure).__name__}"


class HealthServer:
    """Serves health and metrics until it is closed; on loopback unless another address is given.

    Raises OSError if the port is taken.
    """

    def __init__(
        self,
        health: Health,
        metrics: Callable[[], bytes] | None = None,
        *,
        address: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        self._server = _Server((address, port), _handler(health, metrics))
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> HealthServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client that hangs must not hold up our end; its connection times out by itself.
    block_on_close = False


class _Answer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


def _handler(health: Health, metrics: Callable[[], bytes] | None) -> type[BaseHTTPRequestHandler]:
    def answer(path: str) -> _Answer:
        match path.partition("?")[0]:
            case "/healthz":
                return _of_report(health.alive())
            case "/readyz":
                return _of_report(health.ready())
            case "/metrics" if metrics is not None:
                return _Answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", metrics())
            case _:
                return _Answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"/healthz /readyz /metrics\n")

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "penstock"
        sys_version = ""

        def do_GET(self) -> None:
            self._send(answer(self.path), with_body=True)

        def do_HEAD(self) -> None:
            self._send(answer(self.path), with_body=False)

        def _send(self, given: _Answer, *, with_body: bool) -> None:
            self.send_response(given.status)
            self.send_header("Content-Type", given.content_type)
            self.send_header("Content-Length", str(len(given.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if with_body:
                self.wfile.write(given.body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: they are not worth a line."""

    return Handler


def _of_report(report: Report) -> _Answer:
    status = HTTPStatus.OK if report.is_well else HTTPStatus.SERVICE_UNAVAILABLE
    document = {"status": "ok" if report.is_well else "failing", "checks": dict(report.checks)}
    return _Answer(status, "application/json", json.dumps(document).encode() + b"\n")
