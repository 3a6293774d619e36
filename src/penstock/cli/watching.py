"""Which file of the code has changed, for `--reload`: by looking at the times of all of them, again and again."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

# No code of the application, and often a great deal.
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_FILES_MAX = 20_000


def folders_of(module: str, here: Path) -> tuple[Path, ...]:
    """The present folder and, if it lies elsewhere, the package of the module."""
    found = importlib.util.find_spec(module.partition(".")[0])
    if found is None or found.origin is None or found.submodule_search_locations is None:
        return (here,)
    package = Path(found.origin).resolve().parent
    return (here,) if package.is_relative_to(here.resolve()) else (here, package)


class Watch:
    """Python files below some folders, without hidden and foreign ones."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._seen = self._times()

    def changed(self) -> str | None:
        """One that was changed, added or removed since the last time."""
        before, self._seen = self._seen, self._times()
        different = before.items() ^ self._seen.items()
        return min((path for path, _ in different), default=None)

    def _times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in self._files():
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                continue  # removed since it was listed
            if len(found) >= _FILES_MAX:
                break
        return found

    def _files(self) -> Iterator[str]:
        for top in self._folders:
            for folder, inside, names in os.walk(top):
                inside[:] = sorted(name for name in inside if name not in _FOREIGN and not name.startswith("."))
                yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))
