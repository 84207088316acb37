"""What boxes may leave on a host, and processes that own some, to be killed.

Guarantees: looks only at what the given cells used (uids, cgroups, namespaces): other sandboxes may run
beside."""

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from tiltyard.sandbox import Limits

LIMITS = Limits(memory_mb=64, pids=32, disk_mb=8)

OWNER = """
import asyncio, sys
from pathlib import Path
from tiltyard.sandbox import Limits, NativeBackend, WarmPool
from tiltyard.sandbox.native.toolchain import Helpers
FORK = "import os, time\\nfor _ in range(5):\\n  if not os.fork(): os.setsid()\\n"
CODE = FORK + "os.write(1, b'x')\\nwhile 1: time.sleep(.01)"
async def hold(box, all_up):
    left = 32
    def hear(stream, chunk):
        nonlocal left
        left -= len(chunk)
        if not left:
            all_up.release()
    await box.exec(["python3", "-I", "-S", "-c", CODE], cpu_seconds=1000, on_output=hear)
async def main():
    limits = Limits(memory_mb=64, pids=64, disk_mb=8)
    helpers = Helpers.within(Path(sys.argv[1])) if sys.argv[1:] else None
    pool = WarmPool(size=3, limits=limits, backend=NativeBackend(helpers=helpers))
    async with pool, pool.acquire_many(3) as boxes:
        all_up = asyncio.Semaphore(0)
        work = [asyncio.ensure_future(hold(box, all_up)) for box in boxes]
        for _ in boxes:
            await all_up.acquire()
        print(*(box.id.split("-")[1] for box in boxes), flush=True)
        await asyncio.gather(*work)
asyncio.run(main())
"""

PAUSER = """
import asyncio
from tiltyard.sandbox import Limits, WarmPool
CODE = "import os\\nprint(1, flush=True)\\nwhile 1:\\n  if not os.fork(): os._exit(0)\\n  os.wait()"
async def main():
    async with WarmPool(size=3, limits=Limits(memory_mb=64, pids=64, disk_mb=8)) as pool:
        async with pool.acquire_many(3) as boxes:
            for box in boxes:
                await (await box.start(["python3", "-I", "-S", "-c", CODE])).more()
                await box.pause()
            print(*(box.id.split("-")[1] for box in boxes), flush=True)
            await asyncio.sleep(1e6)
asyncio.run(main())
"""
"""Three paused boxes, each stopped in the middle of a storm of forks."""


def uids(cell: int) -> tuple[int, int]:
    return 1_900_000_000 + 2 * cell, 1_900_000_000 + 2 * cell + 1


def processes(cells: list[int]) -> list[int]:
    wanted = {uid for cell in cells for uid in uids(cell)}
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in wanted:
                found.append(int(entry.name))
    return found


def pid_namespaces(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add(str(Path(f"/proc/{pid}/ns/pid").readlink()))
    return found


def held_namespaces() -> set[str]:
    return pid_namespaces([int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()])


def cgroups(cells: list[int]) -> list[Path]:
    hierarchies = [Path("/sys/fs/cgroup/tiltyard"), *Path("/sys/fs/cgroup").glob("*/tiltyard")]
    return [folder / f"c{cell}" for folder in hierarchies for cell in cells if (folder / f"c{cell}").exists()]


def host_mounts() -> str:
    """But for those of a docker daemon, which may make and end containers beside these tests."""
    lines = Path("/proc/self/mounts").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "docker" not in line)


def eventually(holds: Callable[[], bool], what: str, *, pause: float = 0.05) -> None:
    """Waits, generously, for something that must happen; how soon is not this test's matter."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(pause)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> set[int]:
    return {
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    }


def hold_when_free(registry: IO[bytes], cells: list[int]) -> threading.Thread:
    """Takes the cells' locks the moment that their holder dies: no other program's start sweeps them."""

    def wait() -> None:
        for cell in cells:
            fcntl.lockf(registry, fcntl.LOCK_EX, 1, cell)

    waiting = threading.Thread(target=wait)
    waiting.start()
    return waiting


class Owner:
    """A process that holds three busy boxes. `helpers`: a folder of others than the current ones."""

    def __init__(self, *helpers: Path, script: str = OWNER) -> None:
        command = [sys.executable, "-c", script, *map(str, helpers)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.cells = [int(word) for word in self.process.stdout.readline().split()]
        (self.host,) = children(self.process.pid)
        self.warm = children(self.host) - set(processes(self.cells))
        self.payload = processes(self.cells)
        self.namespaces = pid_namespaces(self.payload)

    def bury(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
