"""A real PostgreSQL server for tests: on the loopback, with data of its own, gone when the tests are.

Its programs are the machine's, or those that `make postgres` unpacked into .venv. It refuses to run as root, so root
runs it as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UNPACKED = Path(sys.prefix) / "postgres"
START_S = 60


class NoServer(Exception):
    """Why there is none on this machine."""


@dataclass(frozen=True)
class Postgres:
    port: int
    pid: int

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=penstock dbname=postgres"


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Raises NoServer, with the reason, where none can be run."""
    programs, user = _programs(), _user()
    # Not in pytest's own folder: that is closed to the other user.
    home = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    try:
        if user is not None:
            shutil.chown(home, user)
        _run(
            programs,
            user,
            "initdb",
            "-D",
            str(home / "data"),
            "-U",
            "penstock",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
        )
        with _serving(programs, user, home) as server:
            yield server
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _programs() -> Path:
    """The folder with `initdb` and `postgres`: the newest there is."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *UNPACKED.glob("usr/lib/postgresql/*/bin")]
    found = [place for place in places if (place / "initdb").exists() and (place / "postgres").exists()]
    on_path = shutil.which("initdb")
    if found:
        return max(found, key=lambda place: float(place.parent.name))
    if on_path is not None:
        return Path(on_path).resolve().parent
    raise NoServer("no PostgreSQL server on this machine: install one, or let `make postgres` fetch it")


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NoServer("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _environment(programs: Path) -> dict[str, str]:
    root = programs.parents[4]
    libraries = [str(path) for path in root.glob("usr/lib/*-linux-gnu")] if root == UNPACKED else []
    return {"PATH": os.environ["PATH"], "LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(libraries)}


def _run(programs: Path, user: str | None, program: str, *arguments: str) -> None:
    command = [str(programs / program), *arguments]
    try:
        done = subprocess.run(
            command, user=user, cwd="/", env=_environment(programs), capture_output=True, text=True, check=False
        )
    except PermissionError as problem:
        raise NoServer(f"user {user} may not run {command[0]}") from problem
    if done.returncode:
        raise NoServer(f"{program} failed: {done.stderr.strip()[-500:]}")


@contextmanager
def _serving(programs: Path, user: str | None, home: Path) -> Iterator[Postgres]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
        "jit": "off",
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [str(programs / "postgres"), "-D", str(home / "data"), *arguments]
    with open(home / "log", "wb") as log:
        server = subprocess.Popen(command, user=user, cwd="/", env=_environment(programs), stdout=log, stderr=log)
    try:
        _wait_until_ready(server, port, home / "log")
        yield Postgres(port, server.pid)
    finally:
        server.send_signal(2)  # SIGINT: end sessions, then stop cleanly
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(Postgres(port, server.pid).dsn).close()
            return
        except psycopg.OperationalError as trouble:
            if server.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"PostgreSQL did not come up: {log.read_text()[-500:]}") from trouble
            time.sleep(0.05)
