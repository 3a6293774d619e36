"""Two members share the partitions of a topic, through Kafka alone: no group membership, no rebalance."""

import threading
from collections import Counter

import penstock
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings, Settings

COUNT = 1_000


def work(app: penstock.App, client: str, seen: Counter[str], done: threading.Event) -> None:
    with app.group(client=client).consume(["orders"]) as messages:
        while not done.is_set():
            for batch in messages.batches(timeout_s=0.1):
                seen[client] += len(batch)
                batch.ack()


with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="orders", partitions=8, config={}, reason="an example")])
    app = penstock.App("shop", settings=settings)

    seen: Counter[str] = Counter()
    done = threading.Event()
    members = [threading.Thread(target=work, args=(app, name, seen, done)) for name in ("ann", "bob")]
    for member in members:
        member.start()
    with Writer(settings.kafka) as writer:
        for number in range(COUNT):
            writer.send("orders", number % 8, b"order %d" % number)
    while sum(seen.values()) < COUNT:
        done.wait(0.05)
    done.set()
    for member in members:
        member.join()
    print(f"{COUNT} orders sent, {sum(seen.values())} worked on, by {len(members)} members")
