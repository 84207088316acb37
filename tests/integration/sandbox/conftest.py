"""One event loop and one warm pool for the whole session; every test gets fresh boxes from it."""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tiltyard.sandbox import Box, ExecResult, Limits, WarmPool

T = TypeVar("T")

LIMITS = Limits(memory_mb=128, pids=24, cpus=1.0, disk_mb=32, inodes=2048)


class Lab:
    """Runs coroutines on the session's loop, each with a fresh box."""

    def __init__(self, runner: asyncio.Runner, pool: WarmPool) -> None:
        self._runner = runner
        self.pool = pool
        self.last_uid = 0
        """host uid of the payload of the last box that was used"""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def exec(self, argv: list[str], **options: Any) -> ExecResult:
        """One command in a box of its own."""

        async def once() -> ExecResult:
            async with self.pool.acquire(timeout=60) as box:
                self.last_uid = payload_uid(box)
                return await box.exec(argv, **options)

        return self.run(once())

    def python(self, code: str, **options: Any) -> ExecResult:
        """One Python program in a box of its own."""
        return self.exec(["python3", "-I", "-S", "main.py"], files={"main.py": code}, **options)

    def with_box(self, work: Any) -> Any:
        """`await work(box)` in a box of its own."""

        async def once() -> Any:
            async with self.pool.acquire(timeout=60) as box:
                self.last_uid = payload_uid(box)
                return await work(box)

        return self.run(once())


def payload_uid(box: Box) -> int:
    """The payload's uid as the host sees it: each cell has its own (c/host/host.h, ID_BASE)."""
    return 1_900_000_000 + 2 * int(box.id.split("-")[1])


def alive(uid: int) -> list[str]:
    """Command lines of the processes that this uid runs on the host."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(entry.joinpath("cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("making native sandboxes needs root")
    pool = WarmPool(size=4, limits=LIMITS)
    with asyncio.Runner() as runner:
        runner.run(pool.start())
        yield Lab(runner, pool)
        runner.run(pool.close())


def said(result: ExecResult) -> str:
    """What the command printed; its whole end when it failed."""
    assert result.ok, result
    return result.stdout.decode().strip()


def listing(lab: Lab, code: str) -> list[str]:
    """The words that a Python program printed in a box of its own."""
    return said(lab.python(code)).split()
