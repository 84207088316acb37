"""What is done in boxes of any backend while a clock runs."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import SandboxError
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.pool import WarmPool

from .clock import Clock, Percentiles

LIMITS = Limits(memory_mb=128, pids=64, disk_mb=16)
"""of every box that is measured"""
PYTHON = ("python3", "-I", "-S", "main.py")
PROGRAM = "print(sum(range(10)))"
"""the one-shot program, of boxes and peers"""


class BenchFault(SandboxError):
    """What was measured did not work, so that its figure would say nothing."""


async def full(pool: WarmPool) -> None:
    """Waits until every box of a pool is ready: a pool tells nobody that it is full."""
    while (await pool.stats()).ready < pool.size:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def cycles(
    pool: WarmPool, count: int, work: Callable[[Box], Awaitable[object]]
) -> dict[str, Percentiles]:
    """Boxes taken, used and given back one after another."""
    made, acquired, whole = Clock(), Clock(), Clock()
    for _ in range(count):
        with whole.measure():
            with acquired.measure():
                loan = pool.acquire()
                box = await loan.__aenter__()
            made.taken.append(box.made_in * 1e3)
            await work(box)
            await loan.__aexit__(None, None, None)
    return {
        "create_ms": made.percentiles(),
        "acquire_ms": acquired.percentiles(),
        "cycle_ms": whole.percentiles(),
    }


async def execs(pool: WarmPool, count: int) -> Percentiles:
    """Commands in one live box."""
    clock = Clock()
    async with pool.acquire() as box:
        for _ in range(count):
            with clock.measure():
                await box.exec(["true"])
    return clock.percentiles()


async def one_shots(pool: WarmPool, seconds: float, at_once: int) -> float:
    """Python programs, each in a fresh box, a second."""
    done = 0
    start = time.perf_counter()

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < start + seconds:
            async with pool.acquire() as box:
                result = await box.exec(PYTHON, files={"main.py": PROGRAM})
            if not result.ok:
                raise BenchFault(f"a program of the bench ended {result}")
            done += 1

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return round(done / (time.perf_counter() - start), 1)
