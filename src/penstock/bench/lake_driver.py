"""A driver of its own for a bench: `penstock lake run --standby`, which can be killed as a whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from penstock.settings import KafkaSettings

_PENSTOCK = "from penstock.cli.main import main; main()"


class DriverProcess:
    """The Python and the Java of one pipeline, started with the folder's `penstock.toml`; gone when this is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self._words: IO[str] = (self._folder / "said").open("a+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PENSTOCK, "lake", "run", "--standby", "--quiet"],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._words.close()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """End Python and Java at once, with whatever they have in hand."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def said(self) -> str:
        """Its last words."""
        self._words.seek(0)
        return self._words.read()[-1_000:]


def configure(folder: Path, kafka: KafkaSettings, *, prefix: str, name: str, pipeline: Mapping[str, object]) -> None:
    """Write the folder's `penstock.toml`: this broker, topics of our own, one pipeline."""
    folder.mkdir(parents=True)
    sections = [
        ("kafka", {"bootstrap_servers": kafka.bootstrap_servers}),
        ("kafka.client", kafka.client),
        (f"lake.{name}", pipeline),
    ]
    text = f"topic_prefix = {_quoted(prefix)}\n" + "".join(
        f"\n[{section}]\n" + "".join(f"{_quoted(option)} = {_quoted(value)}\n" for option, value in given.items())
        for section, given in sections
    )
    place = folder / "penstock.toml"
    place.touch(mode=0o600)
    place.write_text(text, "utf-8")


def _quoted(value: object) -> str:
    return json.dumps(value)
