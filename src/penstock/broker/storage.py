"""Formatting: what a node's log directory must hold before Kafka will start on it.

Kafka's own tool takes a second of a Java start per node. All that it writes is a small file with ids
(`meta.properties`) and the feature levels that a new cluster begins with (`bootstrap.checkpoint`). The levels are the
same for every cluster of one Kafka release, so the tool runs once per release and user, and its checkpoint is kept:
the levels are exactly Kafka's own, and later formats are a copy.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from penstock.broker.java import Java
from penstock.broker.places import cache_folder, made
from penstock.broker.recipe import LOG_DIRECTORY, SERVER_PROPERTIES, NodePorts, server_properties
from penstock.broker.release import Release
from penstock.errors import BrokerFailed

_CHECKPOINT = "bootstrap.checkpoint"
_FORMAT_TIMEOUT_S = 60


def new_id() -> str:
    """A random id as Kafka writes them: 22 characters, never beginning like a command-line flag."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def is_formatted(folder: Path) -> bool:
    return (folder / LOG_DIRECTORY / "meta.properties").exists()


def format_node(folder: Path, *, node: int, cluster_id: str, checkpoint: Path) -> None:
    """Make the node's log directory; a crash in between leaves it unformatted."""
    directory = folder / LOG_DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkpoint, directory / _CHECKPOINT)
    draft = directory / "meta.properties.draft"
    draft.write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node}\ndirectory.id={new_id()}\n", "ascii")
    os.replace(draft, directory / "meta.properties")


def first_checkpoint(release: Release, java: Java) -> Path:
    """The feature levels that a new cluster of this release begins with, as Kafka's own tool writes them."""
    kept = cache_folder() / "format" / f"{release.version}-{release.fingerprint}.checkpoint"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=made(kept.parent), prefix=".formatting-") as scratch:
            _run_storage_tool(Path(scratch), release, java)
            os.replace(Path(scratch) / LOG_DIRECTORY / _CHECKPOINT, kept)
    return kept


def _run_storage_tool(folder: Path, release: Release, java: Java) -> None:
    (folder / SERVER_PROPERTIES).write_text(server_properties(1, [NodePorts(client=1, controller=2)]), "ascii")
    command = [
        str(java.executable),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        release.classpath,
    ]
    arguments = ["kafka.tools.StorageTool", "format", "-t", new_id(), "-c", SERVER_PROPERTIES]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
    )
    if done.returncode != 0 or not (folder / LOG_DIRECTORY / _CHECKPOINT).exists():
        raise BrokerFailed(
            f"Kafka {release.version} from {release.origin} could not format a folder (exit code {done.returncode})",
            log_tail=(done.stdout + done.stderr)[-4_000:],
            next_step="`penstock doctor` checks Java and the jars",
        )
