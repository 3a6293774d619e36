"""At most once: the position moves, is read back, and only then is a message handed out. A crash may lose a batch."""

import penstock
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings, Settings

with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    with Admin(settings.kafka) as admin:
        admin.create([TopicSpec(name="letters", partitions=1, config={}, reason="an example")])
    with Writer(settings.kafka) as writer:
        for letter in "abcde":
            writer.send("letters", 0, letter.encode())
    app = penstock.App("printer", settings=settings)

    with app.group(client="first").consume(["letters"], delivery="at_most_once", batch_max=2) as messages:
        for message in messages:
            print("first prints", (message.value or b"").decode())
            if message.value == b"b":
                break  # as if it crashed here: what was committed is never printed again

    with app.group(client="second").consume(["letters"], delivery="at_most_once") as messages:
        for message in messages:
            print("second prints", (message.value or b"").decode())
            if message.value == b"e":
                break
