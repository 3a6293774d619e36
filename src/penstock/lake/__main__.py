"""Pipelines on a Spark that somebody else starts: what `spark-submit` runs.

    spark-submit --master spark://host:7077 --packages ... $(python -m penstock.lake --path) NAME --config penstock.toml
    python -m penstock.lake NAME --config penstock.toml

Under spark-submit the master, the jars and the memory are those that it was given, and its session is used; alone it is
the same as `penstock lake run`. The packages have to be of one line: org.apache.spark:spark-sql-kafka-0-10_2.13 and
spark-avro_2.13 in Spark's own version, and the io.delta:delta-spark that goes with it. The executors need nothing of
Penstock: no Python runs there, except where payloads are decompressed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Find the package, wherever this file was started from, and run the command."""
    if sys.argv[1:] == ["--path"]:
        print(HERE / "__main__.py")
        return
    # A script's own folder comes first on the path, and there `penstock.lake` is only called `lake`.
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != HERE] + [str(HERE.parent.parent)]
    from penstock.cli.main import main as penstock

    penstock(["lake", "run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
