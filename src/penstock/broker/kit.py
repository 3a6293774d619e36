"""What must be there before a broker can start, got ready once per user and then found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.broker.archive import class_data
from penstock.broker.jars import Progress
from penstock.broker.java import Java, find_java
from penstock.broker.release import Release, find_release
from penstock.broker.storage import first_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    java: Java
    release: Release
    checkpoint: Path
    class_data: tuple[str, ...]


def prepare(*, progress: Progress | None = None) -> Kit:
    """Java, jars, and what makes starts quick; takes some seconds the first time and no network after it.

    Raises Unavailable, WrongChecksum, ConfigError or BrokerFailed, saying what to do.
    """
    java, release = find_java(), find_release(progress=progress)
    checkpoint = first_checkpoint(release, java)
    return Kit(java=java, release=release, checkpoint=checkpoint, class_data=class_data(release, java, checkpoint))
