"""What a stack left behind is told from what another program of this host holds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.cli.demo.footprint import footprint

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root"),
]
HOLDER = """
import asyncio
from tiltyard.sandbox import Limits, WarmPool
async def main():
    limits = Limits(memory_mb=64, pids=32, disk_mb=8)
    async with WarmPool(size=2, limits=limits) as pool, pool.acquire() as box:
        print(box.id.split("-")[1], flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.fixture
def holder() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A program that holds sandboxes, and the cell of one of them."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def _of(cell: int, names: frozenset[str]) -> list[str]:
    return [name for name in names if name.endswith(f"/c{cell}")]


def _host_of(owner: int) -> int:
    """The `tilt-host` that the owner started."""
    children = Path(f"/proc/{owner}/task/{owner}/children").read_text().split()
    return next(int(pid) for pid in children if b"tilt-host" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_what_another_program_holds_is_no_leak_and_what_nobody_holds_is(
    tmp_path: Path, holder: tuple["subprocess.Popen[str]", int]
) -> None:
    process, cell = holder
    assert _of(cell, footprint(tmp_path).cgroups) == []
    os.kill(_host_of(process.pid), signal.SIGKILL)
    process.kill()
    _until(lambda: _of(cell, footprint(tmp_path).cgroups), "its cgroups are still told as held")
