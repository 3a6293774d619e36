"""A schema registry that is small, but a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class RegistryServer:
    """Answers from `answers`, by path; anything else is not found. `asked` are the paths and logins in their order."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.address = ""

    def register(self, schema_id: int, schema: object, *, subject: str = "", version: int = 1, **more: object) -> None:
        answer = json.dumps({"schema": json.dumps(schema), "id": schema_id, **more}).encode()
        self.answers[f"/schemas/ids/{schema_id}"] = (200, answer)
        if subject:
            self.answers[f"/subjects/{subject}/versions/latest"] = (200, answer)
            self.answers[f"/subjects/{subject}/versions/{version}"] = (200, answer)

    @contextmanager
    def running(self) -> Iterator[RegistryServer]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append((self.path, self.headers.get("Authorization")))
                status, body = registry.answers.get(self.path, (404, b'{"error_code": 40403}'))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status // 100 == 3:
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
