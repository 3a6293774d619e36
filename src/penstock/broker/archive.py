"""Class data sharing: the classes of the broker, parsed and checked once, are mapped into every later Java start.

It halves the time until a broker is ready, and the nodes of a cluster share its pages. Java uses an archive only if
version and jars are those that it was made from, and otherwise starts without: a bad one makes starts slower, never
wrong. It is made at the first start with each pair of release and Java, from the classes that a broker really loads.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from penstock.broker import recipe, storage
from penstock.broker.java import Java
from penstock.broker.places import cache_folder, locked, made
from penstock.broker.ports import free_ports
from penstock.broker.process import Engine, Node
from penstock.broker.release import Release
from penstock.errors import PenstockError

_TIMEOUT_S = 60
_KEPT_MAX = 4


def class_data(release: Release, java: Java, checkpoint: Path) -> tuple[str, ...]:
    """The Java options that use the archive; it is made if there is none."""
    folder = made(cache_folder() / "classes")
    archive = folder / f"{release.version}-{release.fingerprint}-{_fingerprint(java)}.jsa"
    if not archive.exists():
        with locked(folder / ".lock"):
            if not archive.exists():
                _make(archive, release, java, checkpoint)
    # An empty one says that it was tried and did not work here.
    return (f"-XX:SharedArchiveFile={archive}",) if archive.stat().st_size else ()


def _fingerprint(java: Java) -> str:
    return hashlib.sha256(f"{java.executable.resolve()} {java.version}".encode()).hexdigest()[:8]


def _make(archive: Path, release: Release, java: Java, checkpoint: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as scratch:
        draft = Path(scratch) / "draft.jsa"
        try:
            classes = _classes_loaded_by_a_broker(Path(scratch), release, java, checkpoint)
            _dump(classes, draft, release, java)
        except (PenstockError, OSError, subprocess.SubprocessError):
            # Without an archive everything works, only slower; the real start will say it if there is real trouble.
            draft.write_bytes(b"")
        os.replace(draft, archive)
    for outdated in sorted(archive.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime)[:-_KEPT_MAX]:
        outdated.unlink(missing_ok=True)


def _classes_loaded_by_a_broker(scratch: Path, release: Release, java: Java, checkpoint: Path) -> Path:
    folder, classes = scratch / "node-1", scratch / "classes"
    client, controller = free_ports(2)
    cluster_id = storage.new_id()
    storage.format_node(folder, node=1, cluster_id=cluster_id, checkpoint=checkpoint)
    engine = Engine(
        java=java,
        release=release,
        heap_mb=512,
        cluster_id=cluster_id,
        temporary=scratch,
        outlives_us=False,
        class_data=("-Xshare:off", f"-XX:DumpLoadedClassList={classes}"),
    )
    node = Node(1, folder, engine, [recipe.NodePorts(client=client, controller=controller)])
    node.launch()
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while not node.is_ready():
            if time.monotonic() > deadline:
                raise node.not_ready_within(_TIMEOUT_S)
            time.sleep(0.05)
    finally:
        node.ask_to_end(signal.SIGKILL)
        node.see_end(within_s=_TIMEOUT_S)
    return classes


def _dump(classes: Path, archive: Path, release: Release, java: Java) -> None:
    command = [str(java.executable), "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:dump", "-Xlog:disable"]
    options = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}", "-cp", release.classpath]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
