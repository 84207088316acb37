"""Many idle boxes at once: what each costs, and how fast one is used up and replaced beside them."""

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

from tiltyard.sandbox.pool import WarmPool

from .work import LIMITS, cycles, full


async def live(count: int, rounds: int) -> dict[str, Any]:
    """A pool of `count` idle boxes. Raises SandboxUnavailable when the host cannot hold so many."""
    _open_many()
    before, start = _available_mib(), time.perf_counter()
    async with WarmPool(size=count, limits=LIMITS) as pool:
        await full(pool)
        filled = time.perf_counter() - start
        each = (before - _available_mib()) / count
        start, created = time.perf_counter(), (await pool.stats()).created
        found = await cycles(pool, rounds, lambda box: box.write("dirty", b"x"))
        while (await pool.stats()).created < created + rounds:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        rate = rounds / (time.perf_counter() - start)
    return {
        "cycles_per_s": round(rate, 1),
        "create_ms": found["create_ms"],
        "mib_each": round(each, 3),
        "fill_s": round(filled, 1),
    }


def _open_many() -> None:
    """Each idle box is a socket of this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _available_mib() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 1024
