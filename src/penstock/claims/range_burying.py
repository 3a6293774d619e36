"""Burying what was granted to be buried: a copy to the dead letters, in a thread of its own, then it is dead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.claims.blocks import Block
from penstock.claims.dead_letters import DeadLetters
from penstock.errors import PenstockError
from penstock.kafka.reader import Reader
from penstock.observe import events
from penstock.observe.events import tell
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

AGAIN_S = 5.0

log = logging.getLogger("penstock.claims")


class RangeBurying:
    """Copies one message at a time. Whoever asks is told when the copy is written."""

    def __init__(self, settings: KafkaSettings, dead_letters: DeadLetters, *, reason: str) -> None:
        self._settings, self._dead_letters, self._reason = settings, dead_letters, reason
        self._is_copied: dict[Block, bool] = {}
        self._again_at_s: dict[Block, float] = {}
        self.nudge: Callable[[], None] = lambda: None

    def is_copied(self, block: Block) -> bool:
        """The first question begins it. It does not wait."""
        if self._is_copied.get(block):
            return self._is_copied.pop(block)
        if block not in self._is_copied and time.monotonic() >= self._again_at_s.get(block, 0.0):
            self._is_copied[block] = False
            threading.Thread(target=self._copy, args=(block,), name=f"penstock-bury-{block.slot}", daemon=True).start()
        return False

    def _copy(self, block: Block) -> None:
        place = TopicPartition(block.slot.topic, block.slot.partition or 0)
        try:
            with Reader(self._settings) as reader:
                record = reader.read_at(place, block.start)
            # What is gone, or never was a message, needs no copy.
            self._dead_letters.bury([] if record is None else [record], reason=self._reason)
        except Exception as failure:
            # Whatever it was, and first of all: a block that is never asked for again would be renewed for ever.
            self._again_at_s[block] = time.monotonic() + AGAIN_S
            del self._is_copied[block]
            if not isinstance(failure, PenstockError):
                log.exception("burying offset %d of %s failed; trying again in %g s", block.start, place, AGAIN_S)
            tell(events.BurialFailed(topic=place.topic, partition=place.partition, reason=str(failure)))
            return
        self._is_copied[block] = True
        self.nudge()
