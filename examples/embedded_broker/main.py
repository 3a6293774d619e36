"""A real Apache Kafka for as long as a `with` lasts: for tests, notebooks and first steps."""

import penstock
from penstock.kafka.reader import Reader
from penstock.kafka.topics import Admin, TopicSpec
from penstock.kafka.writer import Writer
from penstock.settings import KafkaSettings
from penstock.values import TopicPartition

with penstock.broker.Embedded() as kafka:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap)
    with Admin(settings) as admin:
        admin.create([TopicSpec(name="greetings", partitions=1, config={}, reason="an example")])
    with Writer(settings) as writer:
        for word in (b"hello", b"world"):
            writer.send("greetings", 0, word)
        writer.flush(10_000)
    with Reader(settings) as reader:
        reader.assign({TopicPartition("greetings", 0): 0})
        words: list[bytes | None] = []
        while len(words) < 2:
            words += [record.value() for record in reader.read(10, 1_000)]
    print(f"Kafka {kafka.version} said: {b' '.join(word or b'' for word in words).decode()}")
