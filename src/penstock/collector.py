"""Python's garbage collector, held back where many records pass: it would go through them again and again and find
nothing, for they are in no circle.
"""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from typing import Final


class Arrangement(ABC):
    """It holds while anybody is between `begin` and `end`; then everything is as before.

    All threads share the collector: if each looked for itself how it is set, one could leave it changed for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._change()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._restore()

    @abstractmethod
    def _change(self) -> None: ...

    @abstractmethod
    def _restore(self) -> None: ...


class AtRest(Arrangement):
    """The collector does nothing. For the moment in which records are made."""

    def _change(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def _restore(self) -> None:
        if self._was_on:
            gc.enable()


class Seldom(Arrangement):
    """The collector looks at new objects when there are so many of them that were not freed. For as long as a queue is
    worked on: a worker has thousands of messages in hand, and by itself it would begin at some hundreds.
    """

    YOUNG_MAX: Final = 50_000

    def _change(self) -> None:
        self._before = gc.get_threshold()
        young, *older = self._before
        # None at all is somebody's wish that it never begins by itself.
        self._ours = (max(young, self.YOUNG_MAX) if young else 0, *older)
        gc.set_threshold(*self._ours)

    def _restore(self) -> None:
        if gc.get_threshold() == self._ours:
            gc.set_threshold(*self._before)


AT_REST = AtRest()
SELDOM = Seldom()
