"""Boxes under random ends and SIGKILL of those who own them: afterwards nothing of them exists on the host.

Looks only at what these tests' boxes used (uids, cgroups, namespaces): other sandboxes may run beside."""

import asyncio
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from tiltyard.sandbox import Box, ExecOutcome, Limits, WarmPool
from tiltyard.sandbox.native.cells import REGISTRY

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root"),
]

LIMITS = Limits(memory_mb=64, pids=32, disk_mb=8)
HIERARCHIES = [Path("/sys/fs/cgroup/tiltyard"), *Path("/sys/fs/cgroup").glob("*/tiltyard")]

OWNER = """
import asyncio
from tiltyard.sandbox import Limits, WarmPool
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
    async with WarmPool(size=3, limits=limits) as pool, pool.acquire_many(3) as boxes:
        all_up = asyncio.Semaphore(0)
        work = [asyncio.ensure_future(hold(box, all_up)) for box in boxes]
        for _ in boxes:
            await all_up.acquire()
        print(*(box.id.split("-")[1] for box in boxes), flush=True)
        await asyncio.gather(*work)
asyncio.run(main())
"""


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
    return [folder / f"c{cell}" for folder in HIERARCHIES for cell in cells if (folder / f"c{cell}").exists()]


def host_mounts() -> str:
    """But for those of a docker daemon, which may make and end containers beside these tests."""
    lines = Path("/proc/self/mounts").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "docker" not in line)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Waits, generously, for something that must happen; how soon is not this test's matter."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


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
    """A process that holds three busy boxes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
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


def test_boxes_of_a_killed_owner_leave_nothing() -> None:
    before = host_mounts()
    owner = Owner()
    assert len(owner.cells) == 3
    assert len(owner.payload) >= 3 * 32
    assert len(owner.namespaces) == 3
    assert len(cgroups(owner.cells)) >= 3
    owner.bury()
    eventually(lambda: not processes(owner.cells), "processes outlived their owner")
    eventually(lambda: not Path(f"/proc/{owner.host}").exists(), "tilt-host outlived its owner")
    eventually(lambda: not cgroups(owner.cells), "cgroups outlived their owner")
    assert not owner.namespaces & held_namespaces()
    assert host_mounts() == before


def test_boxes_die_when_owner_and_host_are_killed_and_the_next_start_sweeps() -> None:
    owner = Owner()
    with REGISTRY.open("r+b") as registry:
        held = hold_when_free(registry, owner.cells)
        os.kill(owner.host, signal.SIGSTOP)  # so that it cannot clean up between the two kills
        owner.bury()
        os.kill(owner.host, signal.SIGKILL)
        held.join(60)
        eventually(lambda: not processes(owner.cells), "processes outlived tilt-host")
        eventually(lambda: not any(map(exists, owner.warm)), "a warm interpreter was left")
        assert cgroups(owner.cells), "nothing was left to sweep, so this test proves nothing"

    async def next_start() -> None:
        async with WarmPool(size=1, limits=LIMITS) as pool, pool.acquire() as box:
            assert (await box.exec(["true"])).ok

    asyncio.run(next_start())
    assert not cgroups(owner.cells)
    assert not owner.namespaces & held_namespaces()


def test_a_killed_host_costs_its_commands_an_infra_error_and_the_pool_recovers() -> None:
    async def lose_host() -> None:
        others = children(os.getpid())
        async with WarmPool(size=2, limits=LIMITS) as pool:
            async with pool.acquire() as box:
                command = asyncio.ensure_future(box.exec(["sleep", "100"]))
                await asyncio.sleep(0.2)
                (host,) = children(os.getpid()) - others
                os.kill(host, signal.SIGKILL)
                assert (await command).outcome is ExecOutcome.infra_error
            outcome = ExecOutcome.infra_error
            for _ in range(
                10
            ):  # boxes of the dead host may still be handed out for a moment: infra_error, never a score
                async with pool.acquire(timeout=60) as box:
                    outcome = (await box.exec(["true"])).outcome
                if outcome is not ExecOutcome.infra_error:
                    break
            assert outcome is ExecOutcome.ok
            assert (await pool.stats()).restarts == 1

    asyncio.run(lose_host())


ENDS: list[tuple[list[str], dict[str, float], set[ExecOutcome]]] = [
    (["true"], {}, {ExecOutcome.ok}),
    (["false"], {}, {ExecOutcome.nonzero}),
    (["sh", "-c", "kill -9 $$"], {}, {ExecOutcome.signalled}),
    (["sh", "-c", "setsid sleep 99 & sleep 99"], {"wall_seconds": 0.05}, {ExecOutcome.timeout_wall}),
    (["sh", "-c", "yes"], {"output_bytes": 1000}, {ExecOutcome.output_limit}),
    (["sh", "-c", "while :; do :; done"], {"cpu_seconds": 0.02}, {ExecOutcome.timeout_cpu}),
    (["tail", "/dev/zero"], {}, {ExecOutcome.oom}),
    (["sh", "-c", "dd if=/dev/zero of=/tmp/x"], {}, {ExecOutcome.disk_limit}),
]


def test_many_runs_of_every_end_leave_nothing() -> None:
    """Random ends, cancellations and boxes let go in the middle, eight at a time."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    cells: set[int] = set()

    async def cancel_in_the_middle(box: Box) -> None:
        command = asyncio.ensure_future(box.exec(["sleep", "99"]))
        await asyncio.sleep(dice.random() * 0.02)
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)

    async def one(pool: WarmPool) -> None:
        async with pool.acquire() as box:
            cells.add(int(box.id.split("-")[1]))
            if dice.random() < 0.2:
                await cancel_in_the_middle(box)
                return
            argv, options, outcomes = dice.choice(ENDS)
            result = await box.exec(argv, **options)  # type: ignore[arg-type]
            assert result.outcome in outcomes, (seed, argv, result)

    async def many() -> int:
        async with WarmPool(size=8, limits=LIMITS) as pool:
            for _ in range(25):
                await asyncio.gather(*(one(pool) for _ in range(8)))
            return (await pool.stats()).created

    before, descriptors = host_mounts(), len(os.listdir("/proc/self/fd"))
    assert asyncio.run(many()) >= 200
    assert processes(list(cells)) == []
    assert cgroups(list(cells)) == []
    assert host_mounts() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
