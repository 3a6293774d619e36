"""An S3 server on the loopback: python s3_server.py says its port, and ends with its standard input.

It is a process of its own, so that a driver that is killed, and a test that is busy, do not disturb each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

REGION = "us-east-1"
KEY = SECRET = "for-tests-only"
# Credentials come from the environment, here as in production.
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}


class Bucket:
    """One bucket, as others than Spark see it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint, self.name = endpoint, name
        self._client = boto3.client(
            "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET
        )
        self._client.create_bucket(Bucket=name)

    @property
    def spark(self) -> dict[str, str]:
        """What Hadoop's client must be told to find it; of the credentials nothing."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    @property
    def storage_options(self) -> dict[str, str]:
        """The same for the independent reader."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}

    def objects(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{prefix}/")
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def copied(self, prefix: str, folder: Path) -> Path:
        """Everything below a prefix, byte by byte, for those that read disks."""
        for key in self.objects(prefix):
            if not key.endswith("/"):
                target = folder / key
                target.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self.name, key, str(target))
        return folder / prefix

    def close(self) -> None:
        self._client.close()


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """The address of a server without buckets."""
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as it,
    ):
        assert it.stdin is not None
        assert it.stdout is not None
        try:
            said = it.stdout.readline()
            assert said, log.read_text()[-2_000:]
            yield f"http://127.0.0.1:{json.loads(said)['port']}"
        finally:
            it.stdin.close()
            it.wait(20)


def main() -> None:
    from moto.server import ThreadedMotoServer

    server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    print(json.dumps({"port": port}), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
