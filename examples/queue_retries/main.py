"""What becomes of a message whose handler fails: tried again after a back-off, or kept as a dead letter."""

import threading
from collections import Counter

import penstock
from penstock.claims.dead_letters import dead_letter_topic
from penstock.kafka.reader import Reader
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition


class CardRefused(Exception):
    """Trying again does not help."""


def dead_letters(settings: Settings) -> dict[str, str]:
    """Value and reason of each; `penstock peek payments --state dead` shows the same."""
    place = TopicPartition(dead_letter_topic(settings, "payments", "shop"), 0)
    with Reader(settings.kafka) as reader:
        records = list(reader.ranges(place, [reader.bounds(place)]))
    return {
        (record.value() or b"").decode(): (dict(record.headers() or [])["penstock-reason"] or b"").decode()
        for record in records
    }


with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    app = penstock.App("shop", settings=settings)
    payments = app.queue(
        "payments",
        partitions=1,
        attempts_max=3,
        backoff="100ms",  # then 200ms, 400ms …; chance takes up to half of it away
        backoff_of={TimeoutError: "50ms"},
        give_up_on=(CardRefused,),
    )
    attempts: Counter[str] = Counter()
    last = threading.Event()

    @payments.handler()
    def charge(customer: str, message: penstock.Message) -> penstock.Retry | penstock.Bury | None:
        attempts[customer] += 1
        match customer:
            case "ann" if message.attempt == 1:
                raise TimeoutError("the bank is slow")  # attempt 2 works
            case "bob":
                raise CardRefused
            case "cem":
                return penstock.Bury("closed his account")
            case "dee" if message.attempt == 1:
                return penstock.Retry("200ms")
            case "eve":
                if message.attempt == 3:
                    last.set()
                raise ValueError("a bug of ours")
        return None

    with app:
        payments.send_many(["ann", "bob", "cem", "dee", "eve"])
        app.work(stopping=last)

    print("attempts:", dict(sorted(attempts.items())))
    for customer, reason in sorted(dead_letters(settings).items()):
        print(f"dead: {customer}: {reason}")
