"""A process of ours that says on stdout what it does, and who hears it; for benches, and for the demo."""

from __future__ import annotations

import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

GRACE_S = 40.0


@dataclass(slots=True)
class Child(ABC):
    """The process; `hear` gets what it says, line by line, in a thread of its own."""

    process: subprocess.Popen[str]
    listener: threading.Thread | None = field(default=None, kw_only=True)

    @classmethod
    def running(cls, module: str, *arguments: str) -> Self:
        """Start `python -m module arguments`, and listen."""
        command = [sys.executable, "-m", module, *arguments]
        child = cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        child.listener = threading.Thread(target=child._listen)
        child.listener.start()
        return child

    @abstractmethod
    def hear(self, words: list[str]) -> None:
        """Note what one line says."""

    def stop(self) -> None:
        """Close its stdin: a process that reads it finishes what it has in hand, and goes."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def kill(self) -> None:
        """End it at once; then all that it said was heard."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Stop it, or kill it when it does not go; then all that it said was heard."""
        self.stop()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.listener is not None:
            self.listener.join()

    def _listen(self) -> None:
        if self.process.stdout is None:
            return
        with self.process.stdout as lines:
            for line in lines:
                self.hear(line.split())
