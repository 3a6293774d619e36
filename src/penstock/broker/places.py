"""Where Penstock keeps what can be fetched or made again, and the locks that let several processes share it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import Unavailable


def cache_folder() -> Path:
    """`PENSTOCK_CACHE`, else the user's cache folder; deleting it costs a download, nothing else."""
    if given := os.environ.get("PENSTOCK_CACHE"):
        return Path(given).expanduser().absolute()
    return _base("XDG_CACHE_HOME", ".cache") / "penstock"


def state_folder() -> Path:
    """Where the user's own long-running broker keeps its data unless told otherwise."""
    return _base("XDG_STATE_HOME", ".local/state") / "penstock"


def made(folder: Path) -> Path:
    """The folder, made if it was missing.

    Raises Unavailable when that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise Unavailable(
            f"cannot make the folder {folder}: {failure.strerror or failure}",
            next_step="make it writable, or set PENSTOCK_CACHE to a folder that is",
        ) from failure
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, so a killed one leaves nothing behind."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _base(variable: str, below_home: str) -> Path:
    # The XDG rule: a relative path in these variables is invalid and to be ignored.
    given = os.environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / below_home
