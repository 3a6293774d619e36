from __future__ import annotations

import http.client
import json
import socket
import threading

import pytest

from penstock.observe.health import Health, HealthServer


def fetched(server: HealthServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_without_checks_all_is_well() -> None:
    assert Health().ready().is_well


def test_liveness_asks_only_the_checks_that_a_restart_would_help() -> None:
    health = Health()
    health.add("ledger", lambda: "42 s behind")
    health.add("loop", lambda: None, liveness=True)

    assert health.alive() == (True, {"loop": "ok"})
    assert health.ready() == (False, {"ledger": "42 s behind", "loop": "ok"})


def test_a_check_that_raises_has_failed_without_telling_secrets() -> None:
    health = Health()

    def check() -> None:
        raise ValueError("password=canary")

    health.add("broken", check)

    assert health.ready() == (False, {"broken": "the check itself failed: ValueError"})


def test_a_removed_check_is_asked_no_more() -> None:
    health = Health()
    health.add("gone", lambda: "bad")
    health.remove("gone")

    assert health.ready().is_well


def test_the_server_answers_health_readiness_and_metrics() -> None:
    health = Health()
    health.add("ledger", lambda: "behind")
    with HealthServer(health, lambda: b"penstock_build_info 1\n") as server:
        assert fetched(server, "/healthz") == (200, b'{"status": "ok", "checks": {}}\n')
        status, body = fetched(server, "/readyz?verbose")
        assert (status, json.loads(body)) == (503, {"status": "failing", "checks": {"ledger": "behind"}})
        assert fetched(server, "/metrics") == (200, b"penstock_build_info 1\n")
        assert fetched(server, "/healthz", "HEAD") == (200, b"")
        assert fetched(server, "/etc/passwd")[0] == 404
        assert fetched(server, "/healthz", "POST")[0] == 501


def test_without_metrics_there_is_no_such_page() -> None:
    with HealthServer(Health()) as server:
        assert fetched(server, "/metrics")[0] == 404


def test_it_listens_on_loopback_only_and_frees_its_port_at_the_end() -> None:
    before = set(threading.enumerate())
    with HealthServer(Health()) as server:
        port = server.port
        assert server._server.server_address[0] == "127.0.0.1"
        # A client that connects and says nothing must not hold up the end.
        silent = socket.create_connection(("127.0.0.1", port))

    silent.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    assert "penstock-health" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_port_that_is_taken_is_an_error_at_once() -> None:
    with HealthServer(Health()) as server, pytest.raises(OSError, match="in use"):
        HealthServer(Health(), port=server.port)
