"""The disk that holds the artifacts is full for a while: nothing is committed that is not stored."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from services.cli.stack import running
from tests.chaos.arena import HUNG, Arena
from tests.e2e.scenario import options, submit, wait_until
from tiltyard.client import Client
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
SIZE = 16 << 20
FULL_SECONDS = 2.0
TASKS = 8
LATENCY_MS = "1500"
"""Of the engine: what is aboard when the disk fills up ends after that."""


@contextmanager
def _small_disk(place: Path) -> Iterator[None]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tiltyard-disk", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _fill(file: Path) -> None:
    """Until there is no room for a single byte."""
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    filler.write(b"\0" * size)


def test_a_full_disk_for_artifacts_costs_no_rollout(arena: Arena, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    chosen = options(
        tmp_path / "state", objects=f"file://{disk}/objects", extra={"TILTYARD_SCRIPT_LATENCY_MS": LATENCY_MS}
    )
    with _small_disk(disk), running(chosen) as stack, Client(stack.url, stack.token) as client:
        submit(client, TASKS)
        here = Arena(stack=stack, client=client, rabbitmq=arena.rabbitmq, s3=arena.s3)

        def strike(run: RunView) -> str:
            failed = (
                "SELECT count(*) FROM attempts a JOIN rollouts r ON r.id = a.rollout_id"
                " WHERE r.run_id = %s AND a.outcome = 'artifact_failed'"
            )
            _fill(disk / "filler")
            wait_until(lambda: here.value(failed, run.id) > 0, seconds=HUNG, what="an upload that fails")
            time.sleep(FULL_SECONDS)
            (disk / "filler").unlink()
            return f"{here.value(failed, run.id)} attempts could not be stored"

        here.survives("disk full for artifacts", strike)
