"""A job that two runners have and one of them runs, once in every period; what it writes to refuses a former runner."""

import sys
import threading
from collections import Counter
from pathlib import Path

import penstock
from penstock.claims.fenced import FencedFile
from penstock.claims.job import Run
from penstock.settings import KafkaSettings, Settings

RUNS_WANTED = 3

runs: list[Run] = []
enough = threading.Event()


def runner(settings: Settings) -> penstock.App:
    """What each machine would start: the same program, with the same job."""
    app = penstock.App("shop", settings=settings)

    @app.every("1s", name="report")
    def report(run: Run) -> None:
        FencedFile("report.txt").write(f"stock at {run.scheduled_for}\n", token=run.token)
        runs.append(run)
        if len(runs) >= RUNS_WANTED:
            enough.set()

    return app


with penstock.broker.Embedded() as kafka:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap))
    with runner(settings).jobs(), runner(settings).jobs():
        if not enough.wait(60):
            sys.exit("the job did not run")

times_run = Counter(run.scheduled_for for run in runs)
print("periods that were run more than once:", sum(count > 1 for count in times_run.values()))
print("enough periods were run:", len(times_run) >= RUNS_WANTED)
print("the report is that of the newest one:", Path("report.txt").read_text() == f"stock at {max(times_run)}\n")
