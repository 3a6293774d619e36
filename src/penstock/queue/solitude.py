"""Being alone in a process: a message that was lost often is taken with nothing beside it, of whatever queue.

Only then is it known whom to blame when the process dies. The workers of a process share one of these.
"""

from __future__ import annotations

import threading


class Solitude:
    """Who has how much in hand, and who wants to be alone. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_hand: dict[object, int] = {}
        self._loner: object | None = None
        """Who is alone, or waits until it can be: nobody else takes anything."""

    def may_take(self, who: object, in_hand: int) -> bool:
        """Whether `who` may ask for messages, with which it has so many in hand."""
        with self._lock:
            if self._loner is not None and self._loner is not who:
                return False
            self._in_hand[who] = in_hand
            return True

    def may_be_alone(self, who: object) -> bool:
        """Whether nobody else has anything in hand. From now on nobody else takes, until `who` wants company again."""
        with self._lock:
            if self._loner is None:
                self._loner = who
            return self._loner is who and not any(count for each, count in self._in_hand.items() if each is not who)

    def note(self, who: object, in_hand: int) -> None:
        with self._lock:
            self._in_hand[who] = in_hand

    def has_company(self, who: object) -> None:
        """`who` does not want to be alone any more."""
        if self._loner is who:
            with self._lock:
                self._loner = None

    def leave(self, who: object) -> None:
        self.has_company(who)
        with self._lock:
            self._in_hand.pop(who, None)
