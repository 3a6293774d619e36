"""A command on a pseudo-terminal, and its screen as somebody in front of it sees it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# Ctrl-C reaches those whose controlling terminal it is typed on.
_ON_IT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
_TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """As much of a terminal as is needed for text, colours and moving up."""

    def __init__(self, columns: int) -> None:
        self.row = self.column = 0
        self.has_cursor = True
        self._columns = columns
        self._cells: dict[tuple[int, int], str] = {}

    @property
    def lines(self) -> list[str]:
        """From the top to the last line that has something."""
        last = max((row for row, _ in self._cells), default=-1)
        return [
            "".join(self._cells.get((row, column), " ") for column in range(self._columns)).rstrip()
            for row in range(last + 1)
        ]

    def feed(self, text: str) -> None:
        for private, parameters, command, character in _TOKEN.findall(text):
            if character:
                self._put(character)
            elif command == "A":
                self.row = max(0, self.row - int(parameters or 1))
            elif command == "K":
                assert parameters == "2", f"a way to erase that this screen does not know: {parameters}"
                self._cells = {at: cell for at, cell in self._cells.items() if at[0] != self.row}
            elif private and parameters == "25":
                self.has_cursor = command == "h"
            else:
                assert command == "m", f"a command that this screen does not know: {parameters}{command}"

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
        else:
            if self.column == self._columns:
                self.row, self.column = self.row + 1, 0
            self._cells[self.row, self.column] = character
            self.column += 1


class Terminal:
    """The command is the leader of the terminal's own session. Close it at the end."""

    def __init__(self, command: Sequence[str], folder: Path, *, columns: int = 100) -> None:
        self.screen, self.raw = Screen(columns), ""
        self.trouble: BaseException | None = None
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_IT, *command],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        self._seeing = threading.Thread(target=self._see, daemon=True)
        self._seeing.start()

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def ended(self, within_s: float) -> int:
        """The exit code, once all that was written is on the screen."""
        code = self.process.wait(within_s)
        self._seeing.join(within_s)
        assert self.trouble is None, self.trouble
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._seeing.join(30)
        os.close(self._ours)

    def _see(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            with suppress(OSError):  # that is how it says that nobody has it open any more
                while read := os.read(self._ours, 65_536):
                    text = decoder.decode(read)
                    self.raw += text
                    self.screen.feed(text)
        except AssertionError as trouble:
            self.trouble = trouble
