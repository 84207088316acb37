"""Boxes under random ends and SIGKILL of those who own them: afterwards nothing of them exists on the host.

TILTYARD_LEAK_RUNS=10000 runs that many commands in boxes whose owners are killed; without it 200."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.remains import (
    LIMITS,
    OWNER,
    PAUSER,
    Owner,
    cgroups,
    children,
    eventually,
    exists,
    held_namespaces,
    hold_when_free,
    host_mounts,
    processes,
)
from tiltyard.sandbox import Box, ExecOutcome, WarmPool
from tiltyard.sandbox.abuse.walls import Wall
from tiltyard.sandbox.native.cells import REGISTRY
from tiltyard.sandbox.native.toolchain import compile_helpers, current_helpers, is_warm

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root"),
]


async def next_start() -> None:
    async with WarmPool(size=1, limits=LIMITS) as pool, pool.acquire() as box:
        assert (await box.exec(["true"])).ok


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

    asyncio.run(next_start())
    assert not cgroups(owner.cells)
    assert not owner.namespaces & held_namespaces()


def test_paused_boxes_leave_nothing_when_owner_and_host_are_killed() -> None:
    """Frozen processes hear no signal but SIGKILL; their PID 1 is not frozen, and its leash ends."""
    owner = Owner(script=PAUSER)
    assert len(owner.payload) >= 2 * 3
    os.kill(owner.host, signal.SIGSTOP)
    owner.bury()
    os.kill(owner.host, signal.SIGKILL)
    eventually(lambda: not processes(owner.cells), "paused processes outlived tilt-host")
    asyncio.run(next_start())
    assert not cgroups(owner.cells)
    assert not owner.namespaces & held_namespaces()


def test_without_their_leashes_boxes_outlive_their_owner_until_the_next_start(tmp_path: Path) -> None:
    """So the leash is what ends them (row 41 of the abuse suite), and the sweep finds those it did not."""
    compile_helpers(tmp_path, without=[Wall.leash.value])
    owner = Owner(tmp_path)
    with REGISTRY.open("r+b") as registry:
        held = hold_when_free(registry, owner.cells)
        os.kill(owner.host, signal.SIGSTOP)
        owner.bury()
        os.kill(owner.host, signal.SIGKILL)
        held.join(60)
        eventually(lambda: not exists(owner.host), "tilt-host could not be killed")
        time.sleep(1)  # with their leashes they are gone long before
        assert len(processes(owner.cells)) >= len(owner.payload)
    asyncio.run(next_start())
    eventually(lambda: not processes(owner.cells), "the sweep left processes")
    assert not cgroups(owner.cells)


def test_a_warm_interpreter_that_is_still_starting_dies_with_its_host() -> None:
    if not is_warm(current_helpers()):
        pytest.skip("needs Python's headers")
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.DEVNULL)
    found: list[tuple[int, int]] = []

    def starting() -> bool:
        with suppress(OSError):  # each may end while it is looked at
            for host in children(process.pid):
                for child in children(host):
                    if b"zygote.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append((host, child))
        return bool(found)

    try:
        eventually(starting, "no warm interpreter was started", pause=0.0005)
        host, interpreter = found[0]
        os.kill(interpreter, signal.SIGSTOP)
        os.kill(host, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not exists(interpreter), "a warm interpreter was left")


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


AT_LENGTH = {"cpu_seconds": 200.0, "wall_seconds": 400.0}  # an emulated machine is some twenty times slower
ENDS: list[tuple[list[str], dict[str, float], set[ExecOutcome]]] = [
    (["true"], AT_LENGTH, {ExecOutcome.ok}),
    (["false"], AT_LENGTH, {ExecOutcome.nonzero}),
    (["sh", "-c", "kill -9 $$"], AT_LENGTH, {ExecOutcome.signalled}),
    (["sh", "-c", "setsid sleep 99 & sleep 99"], {"wall_seconds": 0.05}, {ExecOutcome.timeout_wall}),
    (["sh", "-c", "yes"], {**AT_LENGTH, "output_bytes": 1000}, {ExecOutcome.output_limit}),
    (["sh", "-c", "while :; do :; done"], {"cpu_seconds": 0.02}, {ExecOutcome.timeout_cpu}),
    (["tail", "/dev/zero"], AT_LENGTH, {ExecOutcome.oom}),
    (["sh", "-c", "dd if=/dev/zero of=/tmp/x"], AT_LENGTH, {ExecOutcome.disk_limit}),
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


RUNS = int(os.environ.get("TILTYARD_LEAK_RUNS", "200"))
WORKER = """
import asyncio, random, sys
from tests.chaos.test_sandbox_leaks import ENDS, LIMITS
from tiltyard.sandbox import ExecOutcome, WarmPool
async def one(pool, dice):
    async with pool.acquire(timeout=60) as box:
        print("in", box.id.split("-")[1], flush=True)
        argv, options, outcomes = dice.choice(ENDS)
        result = await box.exec(argv, **options)
        assert result.outcome in outcomes | {ExecOutcome.infra_error}, (argv, result)
        print("out", flush=True)
async def worker(pool, dice):
    while True:
        await one(pool, dice)
async def main():
    dice = random.Random(int(sys.argv[1]))
    async with WarmPool(size=6, limits=LIMITS) as pool:
        await asyncio.gather(*(worker(pool, dice) for _ in range(6)))
asyncio.run(main())
"""


def test_runs_whose_owners_are_killed_at_random_leave_nothing() -> None:
    """Again and again an owner, its tilt-host, or both get SIGKILL in the middle of what they do."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    cells: set[int] = set()
    before, done, kills = host_mounts(), 0, 0
    while done < RUNS or kills < 2:
        done += killed_in_the_middle(dice, cells, after=dice.randrange(min(20, RUNS // 4), min(200, RUNS)))
        kills += 1
    asyncio.run(next_start())
    eventually(lambda: not processes(list(cells)), f"processes were left (seed {seed})")
    eventually(lambda: not cgroups(list(cells)), f"cgroups were left (seed {seed})")
    assert host_mounts() == before


def killed_in_the_middle(dice: random.Random, cells: set[int], after: int) -> int:
    """Runs of one owner until about `after` have ended; how many did."""
    command = [sys.executable, "-c", WORKER, str(dice.randrange(1 << 32))]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    done = 0
    for line in owner.stdout:
        cells.update(int(word) for word in line.split()[1:])
        done += line == "out\n"
        if done == after:
            break
    assert done == after, f"the owner ended by itself: {owner.wait()}"
    hosts = children(owner.pid)
    for pid in dice.choice(([owner.pid], [*hosts, owner.pid], [owner.pid, *hosts])):
        os.kill(pid, signal.SIGKILL)
    owner.stdout.close()
    owner.wait()
    for host in hosts:
        eventually(lambda host=host: not exists(host), "tilt-host outlived its owner")
    return done
