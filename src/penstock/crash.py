"""Named crash points: the places between two effects where a process may die.

Production code calls `crash_point("ledger.appended")` after each effect. Nothing happens there, unless a simulation or
a kill test has armed a hook; both enumerate the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

CrashHook = Callable[[str], None]

_hook: CrashHook | None = None


def crash_point(name: str) -> None:
    if _hook is not None:
        _hook(name)


@contextmanager
def armed(hook: CrashHook) -> Iterator[None]:
    """Let `hook` see every crash point that is passed meanwhile; it may raise, or end the process."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before
