"""One event loop and one warm pool for the whole session; every test gets fresh boxes from it."""

import asyncio
import os
from collections.abc import Coroutine, Iterator
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

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def exec(self, argv: list[str], **options: Any) -> ExecResult:
        """One command in a box of its own."""

        async def once() -> ExecResult:
            async with self.pool.acquire(timeout=60) as box:
                return await box.exec(argv, **options)

        return self.run(once())

    def python(self, code: str, **options: Any) -> ExecResult:
        """One Python program in a box of its own."""
        return self.exec(["python3", "-I", "-S", "main.py"], files={"main.py": code}, **options)

    def with_box(self, work: Any) -> Any:
        """`await work(box)` in a box of its own."""

        async def once() -> Any:
            async with self.pool.acquire(timeout=60) as box:
                return await work(box)

        return self.run(once())


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


__all__ = ["Box", "Lab", "said"]
