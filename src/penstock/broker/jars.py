"""Jars: explicit lists with checksums, fetched once into the user's cache, or taken from a folder that is there.

A list is a data file beside this one (`kafka.jars`, `lake.jars`): every jar by its coordinates, SHA-256 and size,
nothing resolved transitively. A jar enters the cache by one rename, after its checksum was found right, so whatever
stands in the cache under its final name and size was whole; later starts look no further and need no network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from penstock.broker.places import cache_folder, locked, made
from penstock.errors import Unavailable, WrongChecksum
from penstock.observe import tell
from penstock.observe.events import JarsFetched

DOWNLOADS_AT_ONCE = 8
TRIES = 3
READ_TIMEOUT_S = 30

_SCRATCH = ".fetching-"


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How far a download has come."""

    jars_done: int
    jars_total: int
    bytes_done: int
    bytes_total: int


Progress = Callable[[Fetching], None]


def listed(list_name: str) -> tuple[Jar, ...]:
    """The jars of one list, as it ships with Penstock."""
    text = files("penstock.broker").joinpath(f"{list_name}.jars").read_text("utf-8")
    return tuple(_jar(line) for line in text.splitlines() if line and not line.startswith("#"))


def fetch(jars: Sequence[Jar], *, progress: Progress | None = None, repository: str | None = None) -> tuple[Path, ...]:
    """The jars in the user's cache, downloading those that are missing.

    They come from `repository`, else from the one that `PENSTOCK_MAVEN` names, else from Maven Central.

    Raises Unavailable when one is not to be had, WrongChecksum when one is not what the list says.
    """
    cache = cache_folder() / "jars"
    if _missing(jars, cache):
        # Not needed for safety (see above): those who come second wait instead of fetching everything again.
        with locked(made(cache) / ".lock"):
            _sweep(cache)
            if missing := _missing(jars, cache):
                _download_all(missing, cache, progress, repository)
    return tuple(_place(jar, cache) for jar in jars)


def is_cached(jars: Sequence[Jar]) -> bool:
    return not _missing(jars, cache_folder() / "jars")


def verify(jars: Sequence[Jar]) -> None:
    """Read every cached jar again; one that was changed is removed, so that the next start fetches it afresh.

    Raises WrongChecksum for the first that differs, Unavailable if one is missing.
    """
    cache = cache_folder() / "jars"
    for jar in jars:
        place = _place(jar, cache)
        try:
            check(jar, place)
        except WrongChecksum:
            place.unlink()
            raise


def take_from(folder: Path, jars: Sequence[Jar]) -> tuple[Path, ...]:
    """The jars of a folder that the user gave, every one of them checked."""
    for jar in jars:
        check(jar, folder / jar.name)
    return tuple(folder / jar.name for jar in jars)


def check(jar: Jar, path: Path) -> None:
    try:
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as failure:
        raise Unavailable(
            f"cannot read {path}: {failure.strerror or failure}",
            next_step=f"put {jar.group}:{jar.artifact}:{jar.version} there, or unset PENSTOCK_JARS to have it fetched",
        ) from failure
    if found != jar.sha256:
        raise WrongChecksum(path=str(path), expected=jar.sha256, found=found)


def _jar(line: str) -> Jar:
    coordinates, sha256, size = line.split()
    group, artifact, version = coordinates.split(":")
    return Jar(group, artifact, version, sha256, int(size))


def _place(jar: Jar, cache: Path) -> Path:
    return cache / jar.group / jar.name


def _missing(jars: Iterable[Jar], cache: Path) -> list[Jar]:
    return [jar for jar in jars if _size(_place(jar, cache)) != jar.size]


def _sweep(cache: Path) -> None:
    """Remove what a killed download left; the lock says that nobody is at it."""
    for abandoned in cache.glob(f"{_SCRATCH}*"):
        shutil.rmtree(abandoned, ignore_errors=True)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _download_all(jars: Sequence[Jar], cache: Path, progress: Progress | None, repository: str | None) -> None:
    began = time.monotonic()
    tally = _Tally(jars, progress)
    with (
        tempfile.TemporaryDirectory(dir=cache, prefix=_SCRATCH) as scratch,
        ThreadPoolExecutor(DOWNLOADS_AT_ONCE, "jars") as pool,
    ):
        downloads = [pool.submit(_download, jar, cache, Path(scratch), tally, repository) for jar in jars]
        try:
            for download in downloads:
                download.result()
        finally:
            # After a failure (or Ctrl-C) what has not begun need not begin.
            pool.shutdown(cancel_futures=True)
    megabytes = sum(jar.size for jar in jars) / 1e6
    tell(JarsFetched(count=len(jars), megabytes=megabytes, seconds=time.monotonic() - began))


def _download(jar: Jar, cache: Path, scratch: Path, tally: _Tally, repository: str | None) -> None:
    for attempt in range(1, TRIES + 1):
        # jgo is not made for several downloads into one repository folder, nor for a second try: a fresh one each time.
        private = Path(tempfile.mkdtemp(dir=scratch))
        before = tally.mark()
        try:
            fetched = _fetched_by_jgo(jar, private, tally, repository)
            check(jar, fetched)
            break
        except WrongChecksum:
            # A cut-off transfer looks like this too, and heals; a repository that serves something else does not.
            if attempt == TRIES:
                raise
        except (OSError, RuntimeError) as failure:
            if attempt == TRIES:
                raise _not_fetched(jar, failure) from failure
        tally.back_to(before)
        time.sleep(0.25 * 2**attempt)
    place = _place(jar, cache)
    made(place.parent)
    os.replace(fetched, place)
    tally.jar_done()


def _fetched_by_jgo(jar: Jar, folder: Path, tally: _Tally, repository: str | None) -> Path:
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as failure:
        raise Unavailable(
            f"{jar.name} is not here, and jgo, which fetches jars, is not installed",
            next_step="pip install 'penstock[embedded]' or 'penstock[lake]', or set PENSTOCK_JARS or KAFKA_HOME",
        ) from failure
    repository = repository or os.environ.get("PENSTOCK_MAVEN")
    context = MavenContext(
        repo_cache=folder,
        resolver=PythonResolver(progress_callback=tally.watch),
        remote_repos={"given": repository.rstrip("/")} if repository else None,
        timeout=READ_TIMEOUT_S,
    )
    return Path(context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())


def _not_fetched(jar: Jar, failure: Exception) -> Unavailable:
    return Unavailable(
        f"could not fetch {jar.group}:{jar.artifact}:{jar.version} in {TRIES} tries: {failure}",
        next_step="check the network, or set PENSTOCK_MAVEN (a mirror), PENSTOCK_JARS (a folder with the jars) "
        "or, for the broker, KAFKA_HOME (a Kafka 4)",
    )


class _Tally:
    """Adds up what several downloads report, and passes it on."""

    def __init__(self, jars: Sequence[Jar], progress: Progress | None) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._jars_total, self._bytes_total = len(jars), sum(jar.size for jar in jars)
        self._jars_done = self._bytes_done = 0
        self._of_thread = threading.local()

    def mark(self) -> int:
        return getattr(self._of_thread, "bytes", 0)

    def back_to(self, mark: int) -> None:
        self._add(mark - self.mark())

    def jar_done(self) -> None:
        with self._lock:
            self._jars_done += 1
            self._report()

    @contextmanager
    def watch(self, _filename: str, _size: int) -> Iterator[Callable[[int], None]]:
        """jgo's form of a progress callback."""
        yield self._add

    def _add(self, count: int) -> None:
        self._of_thread.bytes = self.mark() + count
        with self._lock:
            self._bytes_done += count
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(
                Fetching(
                    jars_done=self._jars_done,
                    jars_total=self._jars_total,
                    bytes_done=self._bytes_done,
                    bytes_total=self._bytes_total,
                )
            )
