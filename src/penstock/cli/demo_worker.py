"""A worker of the demo's queue, as a process of its own: `python -m penstock.cli.demo_worker BOOTSTRAP CLIENT`.

It says on stdout what it does, a line each: `holds COUNT` when it works on so many partitions, `begun TIME PARTITION
OFFSET TOKEN ORDER` by the machine's monotonic clock, and `done ORDER`.
"""

from __future__ import annotations

import os
import sys
import time

from penstock.app import App
from penstock.queue.message import Message
from penstock.queue.queue import Queue
from penstock.settings import ClaimsSettings, KafkaSettings, Settings
from penstock.values import duration

QUEUE = "penstock-demo-queue"
GROUP = "demo"
PARTITIONS = 8
ATTEMPTS_MAX = 3
POISON_EVERY = 833

_WORK_S = 0.015


def demo_queue(bootstrap: str, *, client: str = "") -> tuple[App, Queue]:
    """The same for who sends and who works. Times are short, so that a demo need not wait for them."""
    claims = ClaimsSettings(topic=f"{QUEUE}.claims", partitions=1, heartbeat=duration("1s"), client=client)
    app = App(GROUP, settings=Settings(kafka=KafkaSettings(bootstrap_servers=bootstrap), claims=claims))
    queue = app.queue(
        QUEUE, lease="3s", attempts_max=ATTEMPTS_MAX, backoff="200ms", in_hand_max=100, partitions=PARTITIONS
    )
    return app, queue


def main() -> None:
    bootstrap, client = sys.argv[1:]
    app, queue = demo_queue(bootstrap, client=client)

    @queue.handler(concurrency=8)
    def handle(order: int, message: Message) -> None:
        _say("begun", time.monotonic(), message.partition, message.offset, message.token, order)
        time.sleep(_WORK_S)
        if order % POISON_EVERY == 0:
            raise ValueError(f"order {order} cannot be worked on")
        _say("done", order)

    parent, held = os.getppid(), 0
    with app.working() as [station]:
        while os.getppid() == parent and station.is_running:
            if len(station.partitions) != held:
                held = len(station.partitions)
                _say("holds", held)
            time.sleep(0.05)


def _say(*words: object) -> None:
    # One write per line: whole lines also from several threads, and when the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


if __name__ == "__main__":
    main()
