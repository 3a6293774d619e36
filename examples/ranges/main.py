"""Three members work on one partition together; a message that always fails ends in the dead letters, alone."""

import threading
from collections import Counter

import penstock
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

COUNT = 300


def work(app: penstock.App, client: str, tries: Counter[bytes], done: threading.Event) -> None:
    with app.group(client=client).consume(["orders"], share="ranges", batch_max=20) as messages:
        while not done.is_set():
            for message in messages.messages(timeout_s=0.1):
                tries[message.value or b""] += 1
                if message.value == b"order 77":
                    message.fail()
                else:
                    message.ack()


with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="orders", partitions=1, config={}, reason="an example")])
        with Writer(settings.kafka) as writer:
            for number in range(COUNT):
                writer.send("orders", 0, b"order %d" % number)

        app = penstock.App("shop", settings=settings)
        tries: Counter[bytes] = Counter()
        done = threading.Event()
        members = [threading.Thread(target=work, args=(app, name, tries, done)) for name in ("ann", "bob", "cem")]
        for member in members:
            member.start()
        while len(tries) < COUNT or "orders.shop.dead" not in admin.names():
            done.wait(0.05)
        with Reader(settings.kafka) as reader:
            reader.assign({TopicPartition("orders.shop.dead", 0): 0})
            dead: list[bytes | None] = []
            while not dead:
                dead += [record.value() for record in reader.read(10, 100)]
        done.set()
        for member in members:
            member.join()

    print(f"{len(tries)} orders worked on by {len(members)} members of one partition")
    others = max(count for order, count in tries.items() if order != b"order 77")
    print(f"order 77 was tried {tries[b'order 77']} times, the others {others}")
    print(f"dead letters: {dead}")
