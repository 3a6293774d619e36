"""`penstock bench queue`: sending next to the bare producer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from penstock.bench.ground import Ground
from penstock.bench.report import Bound, alternating, median_ratio
from penstock.kafka.bare import BareProducer
from penstock.queue.sending import Sender

PARTITIONS = 8
VALUE = b"m" * 100

# The client chooses, as it does for whoever does not care: it fills one partition after the other.
ANY_PARTITION = -1

BOUNDS = {"send_ratio": Bound("at least", 0.6)}

Told = Callable[[str], None]


def measure_sending(ground: Ground, *, runs: int, count: int, told: Told) -> dict[str, float]:
    """Messages/s from the first send to the last acknowledgement: `send_many`, and the bare idempotent producer.

    Both spread the same value over all partitions. Ours also counts the acknowledgement of every message, and would
    name those that failed.
    """
    topic = ground.topic("sending", partitions=PARTITIONS)
    values = [VALUE] * count
    bare = BareProducer(ground.kafka)
    with Sender(ground.kafka, topic) as sender:

        def ours() -> float:
            began = time.perf_counter()
            sender.send_many(values)
            return count / (time.perf_counter() - began)

        def theirs() -> float:
            began = time.perf_counter()
            bare.send_all(topic, ANY_PARTITION, VALUE, count)
            return count / (time.perf_counter() - began)

        ours(), theirs()
        ones, others = alternating(runs, ours, theirs, told=lambda run: told(f"sending, {run}"))
    return {
        "send_ratio": median_ratio(ones, others),
        "send_messages_per_s": statistics.median(ones),
        "bare_send_messages_per_s": statistics.median(others),
    }
