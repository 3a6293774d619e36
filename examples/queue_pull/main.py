"""Pull style: messages are taken by a loop of your own, and settled one by one."""

import penstock
from penstock.settings import KafkaSettings, Settings

with penstock.broker.Embedded() as kafka:
    app = penstock.App("office", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    letters = app.queue("letters", partitions=1, backoff="10ms", attempts_max=2)

    with app:
        letters.send_many(["from the bank", "from a friend", "smeared", "advertising"])
        for message in letters.receive(str, timeout="30s"):  # ends when nothing comes for so long
            with message:  # acked at the end of the block; an exception is a failed attempt, and the loop goes on
                match message.payload:
                    case "advertising":
                        message.bury("nobody wants it")
                    case "from the bank" if message.attempt == 1:
                        message.retry("2s")
                    case "smeared":
                        print(f"smeared: attempt {message.attempt}")
                        raise ValueError("cannot be read")
                    case text:
                        print(f"{text}: read at attempt {message.attempt}")
            if (message.payload, message.attempt) == ("from the bank", 2):
                break  # nothing is left
