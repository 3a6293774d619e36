"""A lock around a command, and a resource that checks the token: what keeps a paused holder from doing harm."""

import subprocess
import sys

import penstock
from penstock.settings import KafkaSettings, Settings


class Ledgerbook:
    """A resource that is safe from former holders: it refuses a lower token than it has seen."""

    def __init__(self) -> None:
        self.highest = -1

    def write(self, line: str, *, token: int) -> str:
        if token < self.highest:
            return f"refused: {line}"
        self.highest = token
        return f"written: {line}"


with penstock.broker.Embedded() as kafka:
    app = penstock.App("books", settings=Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap)))
    book = Ledgerbook()

    with app.lock("nightly-report") as lock:
        old_token = lock.token
        print(book.write("first report", token=lock.token))
    with app.lock("nightly-report") as lock:
        print(book.write("second report", token=lock.token))
    print(book.write("a zombie's report", token=old_token))

    command = [sys.executable, "-m", "penstock", "lock", "nightly-report", "-q", "-b", kafka.bootstrap, "--"]
    script = "import os; print('run under a token:', int(os.environ['PENSTOCK_TOKEN']) > 0)"
    sys.stdout.flush()
    subprocess.run([*command, sys.executable, "-c", script], check=True)
