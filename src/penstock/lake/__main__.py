"""Pipelines on a Spark that somebody else starts: what `spark-submit` runs.

    spark-submit --master spark://host:7077 --packages ... $(python -m penstock.lake --path) NAME --config penstock.toml
    spark-submit --jars $(python -m penstock.lake --jars) $(python -m penstock.lake --path) NAME --config penstock.toml
    python -m penstock.lake NAME --config penstock.toml

Under spark-submit the master, the jars, the memory and the properties are those that it was given; alone it is the same
as `penstock lake run`. The packages have to be of one line: org.apache.spark:spark-sql-kafka-0-10_2.13 and
spark-avro_2.13 in Spark's own version, and the io.delta:delta-spark that goes with it; --jars says where ours are. The
executors need nothing of Penstock: no Python runs there, except where payloads are decompressed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Find the package, wherever this file was started from, and run the command, or say what spark-submit needs."""
    if sys.argv[1:] == ["--path"]:
        print(HERE / "__main__.py")
        return
    # A script's own folder comes first on the path, and there `penstock.lake` is only called `lake`.
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != HERE] + [str(HERE.parent.parent)]
    try:
        if sys.argv[1:] == ["--jars"]:
            print_jars()
        else:
            run(sys.argv[1:])
    except ModuleNotFoundError as missing:
        # spark-submit takes the first python3 that it finds, and that need not be the one with Penstock.
        print(f"error: {sys.executable} has no {missing.name}", file=sys.stderr)
        print("next:  let PYSPARK_PYTHON name the Python in which penstock[lake] is installed", file=sys.stderr)
        sys.exit(1)


def print_jars() -> None:
    from penstock.errors import PenstockError
    from penstock.lake.jars import lake_jars

    try:
        print(",".join(str(path) for path in lake_jars()))
    except PenstockError as problem:
        sys.exit(f"error: {problem}")


def run(arguments: list[str]) -> None:
    from penstock.cli.main import main as penstock

    penstock(["lake", "run", *arguments])


if __name__ == "__main__":
    main()
