"""Figures of the native backend."""

import shutil
import time
from collections.abc import Callable
from typing import Any

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.pool import WarmPool

from .clock import Clock, Percentiles
from .effort import Effort
from .work import LIMITS, BenchFault, cycles, execs, full, one_shots

_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
_COMPILE = ["sh", "-c", "cc -O1 -o main main.c && ./main"]
_SOURCE = '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'


async def native(effort: Effort, step: Callable[[str], None]) -> dict[str, Any]:
    """Milliseconds, or a second; keys as they are printed."""
    async with WarmPool(size=16, limits=LIMITS) as pool:
        await full(pool)
        step("native: create, acquire, exec, release")
        await cycles(pool, pool.size, _true)  # the first boxes were made while the pool itself was starting
        found: dict[str, Any] = dict(await cycles(pool, effort.cycles, _true))
        found["exec_ms"] = await execs(pool, effort.execs)
        step("native: reset, fork")
        found["reset_ms"] = await _resets(pool, effort.resets)
        found["fork_ms"] = await _forks(pool, effort.forks)
        step("native: one-shot Python, fork bomb, C")
        found["oneshot_python_per_s"] = await one_shots(pool, effort.seconds, effort.at_once)
        found["forkbomb_kill_ms"] = await _bomb(pool, effort.bombs)
        found["c_compile_run_ms"] = await _compiles(pool, effort.compiles)
    return found


async def _true(box: Box) -> None:
    await box.exec(["true"])


async def _resets(pool: WarmPool, count: int) -> Percentiles:
    """A box dirtied and made pristine again, verified."""
    clock = Clock()
    async with pool.acquire() as box:
        for _ in range(count):
            await box.write("dirty", b"x")
            with clock.measure():
                await box.reset()
    return clock.percentiles()


async def _forks(pool: WarmPool, count: int) -> Percentiles:
    """A fresh box with the files of a snapshot (20 of 1 KiB)."""
    clock = Clock()
    async with pool.acquire() as box:
        for number in range(20):
            await box.write(f"file{number}", b"x" * 1024)
        snapshot = await box.snapshot()
    for _ in range(count):
        with clock.measure():
            fork = pool.fork(snapshot)
            await fork.__aenter__()
        await fork.__aexit__(None, None, None)
    return clock.percentiles()


async def _bomb(pool: WarmPool, count: int) -> float:
    """From the deadline of a fork bomb until nothing of it lives, in milliseconds; the worst."""
    worst = 0.0
    for _ in range(count):
        async with pool.acquire() as box:
            start = time.perf_counter()
            result = await box.exec(["python3", "-I", "-S", "-c", _BOMB], wall_seconds=0.3, cpu_seconds=60)
            worst = max(worst, (time.perf_counter() - start) * 1e3 - result.wall_seconds * 1e3)
    return round(worst, 1)


async def _compiles(pool: WarmPool, count: int) -> Percentiles | dict[str, str]:
    """A C program of two lines, compiled and run in a fresh box."""
    if not (shutil.which("cc", path="/usr/bin") and shutil.which("as", path="/usr/bin")):
        return {"absent": "no C compiler in /usr/bin: apt-get install gcc libc6-dev"}
    clock = Clock()

    async def one(box: Box) -> None:
        result = await box.exec(_COMPILE, files={"main.c": _SOURCE})
        if result.stdout != b"hello\n":
            raise BenchFault(f"a C program of the bench ended {result}")

    for _ in range(count):
        async with pool.acquire() as box:
            with clock.measure():
                await one(box)
    return clock.percentiles()
