"""How fast boxes are on this machine.

Guarantees: every figure is measured in this run, on real boxes, through the public interface.
Does not: compare machines. Trust ratios within one run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

from .backend import Box
from .limits import Limits
from .pool import WarmPool

_LIMITS = Limits(memory_mb=128, pids=64, disk_mb=16)
_PYTHON = ["python3", "-I", "-S", "main.py"]
_FILES = {"main.py": "print(sum(range(10)))"}
_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"


class _Clock:
    """Durations of one kind, in milliseconds."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    @contextmanager
    def measure(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.taken.append((time.perf_counter() - start) * 1e3)

    def percentiles(self) -> dict[str, float]:
        cuts = quantiles(self.taken, n=100)
        return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}


async def _cycles(pool: WarmPool, count: int, work: Callable[[Box], Awaitable[object]]) -> dict[str, Any]:
    """Boxes taken, used and given back one after another."""
    made, acquired, whole = _Clock(), _Clock(), _Clock()
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


async def _execs(pool: WarmPool, count: int) -> dict[str, float]:
    """Commands in one live box."""
    clock = _Clock()
    async with pool.acquire() as box:
        for _ in range(count):
            with clock.measure():
                await box.exec(["true"])
    return clock.percentiles()


async def _resets(pool: WarmPool, count: int) -> dict[str, float]:
    """A box dirtied and made pristine again, verified."""
    clock = _Clock()
    async with pool.acquire() as box:
        for _ in range(count):
            await box.write("dirty", b"x")
            with clock.measure():
                await box.reset()
    return clock.percentiles()


async def _forks(pool: WarmPool, count: int) -> dict[str, float]:
    """A fresh box with the files of a snapshot (20 of 1 KiB)."""
    clock = _Clock()
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


async def _per_second(pool: WarmPool, seconds: float, at_once: int) -> float:
    """One-shot Python programs, each in a fresh box."""
    done = 0
    stop = time.perf_counter() + seconds

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            async with pool.acquire() as box:
                result = await box.exec(_PYTHON, files=_FILES)
            if not result.ok:
                raise RuntimeError(f"a program of the bench ended {result}")
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return round(done / (time.perf_counter() - start), 1)


async def _bomb(pool: WarmPool) -> float:
    """From the deadline of a fork bomb until nothing of it lives, in milliseconds; the worst of five."""
    worst = 0.0
    for _ in range(5):
        async with pool.acquire() as box:
            start = time.perf_counter()
            result = await box.exec(["python3", "-I", "-S", "-c", _BOMB], wall_seconds=0.3, cpu_seconds=60)
            worst = max(worst, (time.perf_counter() - start) * 1e3 - result.wall_seconds * 1e3)
    return round(worst, 1)


def _available_mib() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 1024


async def live(count: int, *, cycles: int = 200) -> dict[str, Any]:
    """A pool of `count` idle boxes: memory of each, and how fast one is used up and replaced beside them."""
    before = _available_mib()
    async with WarmPool(size=count, limits=_LIMITS) as pool:
        while (await pool.stats()).ready < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # a pool tells nobody that it is full
        each = (before - _available_mib()) / count
        start, created = time.perf_counter(), (await pool.stats()).created
        found = await _cycles(pool, cycles, lambda box: box.write("dirty", b"x"))
        while (await pool.stats()).created < created + cycles:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        rate = cycles / (time.perf_counter() - start)
    return {"cycles_per_s": round(rate, 1), "create_ms": found["create_ms"], "mib_each": round(each, 3)}


async def measure(*, live_counts: tuple[int, ...] = (100,), seconds: float = 3.0) -> dict[str, Any]:
    """Every figure of the native backend: milliseconds, MiB, or a second."""
    async with WarmPool(size=16, limits=_LIMITS) as pool:
        native = await _cycles(pool, 300, lambda box: box.exec(["true"]))
        native["exec_ms"] = await _execs(pool, 300)
        native["reset_ms"] = await _resets(pool, 200)
        native["fork_ms"] = await _forks(pool, 100)
        native["oneshot_python_per_s"] = await _per_second(pool, seconds, 4)
        native["forkbomb_kill_ms"] = await _bomb(pool)
    return {"native": native, "live": {str(count): await live(count) for count in live_counts}}
