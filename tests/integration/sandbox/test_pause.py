"""A paused box stands still, whatever runs in it, and goes on as if nothing had been."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.remains import cgroups, eventually, processes
from tests.integration.sandbox.conftest import Lab, payload_uid
from tiltyard.sandbox import Box, ExecOutcome, Limits, Process, SandboxBusy, SandboxPaused, WarmPool

pytestmark = pytest.mark.sandbox
ECHO = ["python3", "-I", "-S", "-c", "for line in iter(input, ''): print(line, flush=True)"]
STORM = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(6):
    if not os.fork():
        os.setsid()
        break
while True:
    try:
        if not os.fork():
            os.write(1, b".")
            os._exit(0)
    except BlockingIOError: pass  # those before are still ending
    time.sleep(0.001)
"""
CROWD = """
import os, time
for _ in range(1000):
    if not os.fork():
        while True:
            time.sleep(1)
            os.write(1, b".")
os.write(1, b"!")
time.sleep(1000)
"""
WAKER = """
import ctypes, os, signal, time
libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)  # SIGEV_SIGNAL
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
every = (ctypes.c_long * 4)(0, 5_000_000, 0, 5_000_000)
assert libc.timer_settime(timer, 0, every, None) == 0
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"."))
while True: time.sleep(1)
"""


async def _stands_still(process: Process) -> int:
    """Where its output stands; it must not grow."""
    await asyncio.sleep(0.2)  # what was on its way
    seen = process.output().end
    await asyncio.sleep(0.3)
    assert process.output().end == seen
    return seen


@pytest.mark.parametrize("program", [STORM, WAKER], ids=["a storm of forks", "a timer that says SIGCONT"])
def test_what_runs_in_a_paused_box_stands_still_and_goes_on(lab: Lab, program: str) -> None:
    async def work(box: Box) -> None:
        running = await box.start(["python3", "-I", "-S", "-c", program])
        await running.more()
        for _ in range(3):
            await box.pause()
            seen = await _stands_still(running)
            await box.resume()
            assert (await running.more(offset=seen)).data
        assert running.poll() is None
        assert (await box.exec(["true"])).ok

    lab.with_box(work)


def test_a_crowd_whose_pids_fill_more_than_a_page_stands_still() -> None:
    async def main() -> None:
        async with WarmPool(size=1, limits=Limits(memory_mb=1024, pids=1100)) as pool, pool.acquire() as box:
            crowd = await box.start(["python3", "-I", "-S", "-c", CROWD])
            heard = await crowd.more()
            while b"!" not in heard.data and crowd.poll() is None:
                heard = await crowd.more(offset=heard.end)
            await box.pause()
            await asyncio.sleep(0.2)  # what was on its way
            seen = crowd.output().end
            await asyncio.sleep(1.2)
            assert crowd.output().end == seen
            await box.resume()
            assert (await crowd.more(offset=seen)).data

    asyncio.run(main())


def test_no_clock_runs_while_a_box_is_paused(lab: Lab) -> None:
    async def work(box: Box) -> None:
        waiting = await box.start(ECHO, idle_seconds=1.5, wall_seconds=60)
        await waiting.send(b"first\n")
        await waiting.more()
        await box.pause()
        await asyncio.sleep(2.5)
        await box.resume()
        await waiting.send(b"second\n")
        heard = waiting.output()
        while waiting.poll() is None and b"second" not in heard.data:
            heard = await waiting.more(offset=heard.end)
        assert b"second" in heard.data, waiting.poll()
        assert (await waiting.wait()).outcome is ExecOutcome.timeout_idle

    lab.with_box(work)


def test_a_paused_box_refuses_everything_with_the_cure(lab: Lab) -> None:
    async def work(box: Box) -> None:
        running = await box.start(["sleep", "60"])
        await box.pause()
        await box.pause()
        assert box.paused
        calls: list[Any] = [
            lambda: box.exec(["true"]),
            lambda: box.start(["true"]),
            lambda: box.write("x", b""),
            lambda: box.read("x"),
            box.list,
            box.stats,
            box.snapshot,
            lambda: box.connect(80),
            running.kill,
        ]
        for call in calls:
            with pytest.raises(SandboxPaused, match=r"is paused: `await box.resume\(\)` first"):
                await call()
        await box.resume()
        await box.resume()
        assert not box.paused
        assert (await running.kill()).outcome is ExecOutcome.signalled

    lab.with_box(work)


def test_a_box_that_runs_a_command_is_not_paused(lab: Lab) -> None:
    async def work(box: Box) -> None:
        running = asyncio.ensure_future(box.exec(["sleep", "1"]))
        await asyncio.sleep(0.05)
        with pytest.raises(SandboxBusy, match="`start` in the background"):
            await box.pause()
        assert (await running).ok

    lab.with_box(work)


def test_a_paused_box_can_be_reset_and_given_back(lab: Lab) -> None:
    cells: list[int] = []

    async def work(box: Box) -> None:
        for again in (box.reset, None):
            await box.start(["python3", "-I", "-S", "-c", STORM])
            await box.pause()
            cells.append((payload_uid(box) - 1_900_000_000) // 2)
            if again:
                await again()
                assert not box.paused
                assert (await box.exec(["true"])).ok

    lab.with_box(work)
    eventually(
        lambda: not any("fork" in line for cell in cells for line in _lines(cell)),
        "a paused payload outlived its box",
    )
    eventually(lambda: not _freezers(cells), "what a rest needed was left")


def _freezers(cells: list[int]) -> list[Path]:
    beside = {"unified", "freezer"}
    return [each for each in cgroups(cells) if beside & set(each.parts) or (each / "frozen").exists()]


def _lines(cell: int) -> list[str]:
    found = []
    for pid in processes([cell]):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                found.append(file.read())
        except OSError:
            continue
    return found
