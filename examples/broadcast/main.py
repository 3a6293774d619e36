"""All to each: every client reads every message, and what one cannot finish in time goes to the dead letters."""

import threading

import penstock
from penstock.claims.dead_letters import dead_letter_topic
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings, Settings
from penstock.values import TopicPartition

PRICES = [b"kettle 20", b"lamp 35", b"rope ??"]


def follow(app: penstock.App, client: str, known: list[bytes | None], done: threading.Event) -> None:
    # Nothing is claimed: each client keeps a position of its own, by a name that must stay.
    with app.group(client=client).consume(["prices"], share="all", ack_timeout="1s") as messages:
        while not done.is_set():
            for message in messages.messages(timeout_s=0.1):
                if message.value != b"rope ??":
                    known.append(message.value)
                    message.ack()


with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="prices", partitions=1, config={}, reason="an example")])
        with Writer(settings.kafka) as writer:
            for price in PRICES:
                writer.send("prices", 0, price)

        app = penstock.App("shop", settings=settings)
        known: dict[str, list[bytes | None]] = {"till-1": [], "till-2": []}
        done = threading.Event()
        tills = [threading.Thread(target=follow, args=(app, name, known[name], done)) for name in known]
        for till in tills:
            till.start()
        dead = TopicPartition(dead_letter_topic(settings, "prices", "shop"), 0)
        while dead.topic not in admin.names() or not all(len(prices) == 2 for prices in known.values()):
            done.wait(0.05)
        with Reader(settings.kafka) as reader:
            reader.assign({dead: 0})
            letters: list[bytes | None] = []
            while not letters:
                letters += [record.value() for record in reader.read(1, 100)]
        done.set()
        for till in tills:
            till.join()

    for name, prices in known.items():
        print(name, "knows", prices)
    print("dead letters:", set(letters))
