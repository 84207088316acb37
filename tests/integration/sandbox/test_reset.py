"""A box made pristine again, and what happens when what should be pristine is not."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab, alive, payload_uid, said
from tiltyard.sandbox import Box, SandboxGone, WarmPool
from tiltyard.sandbox.pristine import fingerprint

pytestmark = pytest.mark.sandbox

DIRT = """
import os, socket
open("/box/planted", "w"); open("/tmp/planted", "w"); open("/dev/shm/planted", "w")
os.system("ipcmk -M 4096 -Q -S 1 >/dev/null")
s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen()
print("planted", flush=True)
import time; time.sleep(1000)
"""


def test_a_reset_leaves_nothing_of_before(lab: Lab) -> None:
    async def dirty(box: Box) -> None:
        pristine = fingerprint(await box.survey())
        uid = payload_uid(box)
        planter = await box.start(["python3", "-c", DIRT])
        await planter.more()
        dirt = fingerprint(await box.survey())
        assert {line.partition(":")[0] for line in pristine.drift(dirt)} == {
            "sockets",
            "ipc",
            "files",
            "processes",
        }
        before = box.id
        await box.reset()
        assert fingerprint(await box.survey()) == pristine
        assert box.id != before
        assert (await planter.wait()).detail
        assert (
            said(await box.exec(["sh", "-c", "ls -A /box /tmp /dev/shm | grep planted || echo clean"]))
            == "clean"
        )
        assert payload_uid(box) == uid or alive(uid) == []

    lab.with_box(dirty)


def test_resets_of_all_boxes_at_once_are_served(lab: Lab) -> None:
    async def crowd() -> None:
        async with lab.pool.acquire_many(lab.pool.size, timeout=60) as boxes:
            for _ in range(3):
                await asyncio.gather(*(box.write("x", b"x") for box in boxes))
                await asyncio.gather(*(box.reset() for box in boxes))
                assert [await box.list() for box in boxes] == [[]] * lab.pool.size
        async with lab.pool.acquire_many(lab.pool.size, timeout=60):
            assert (await lab.pool.stats()).lent == lab.pool.size

    lab.run(crowd())


def test_a_released_box_cannot_be_reset_and_a_cancelled_reset_takes_nothing(lab: Lab) -> None:
    async def release() -> None:
        async with lab.pool.acquire(timeout=60) as box:
            for delay in (0, 0.001, 0.005):
                resetting = asyncio.ensure_future(box.reset())
                await asyncio.sleep(delay)
                resetting.cancel()
                await asyncio.gather(resetting, return_exceptions=True)
        with pytest.raises(SandboxGone, match="released"):
            await box.reset()
        async with lab.pool.acquire_many(lab.pool.size, timeout=60):
            pass

    lab.run(release())


def test_a_fresh_box_that_is_not_pristine_is_destroyed_and_counted(lab: Lab) -> None:
    """Root on the host plants a file in a box that waits, as a fault of ours might."""

    async def spoil() -> None:
        async with WarmPool(size=3, limits=LIMITS) as pool, pool.acquire(timeout=60) as box:
            await box.reset()
            while (await pool.stats()).ready < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # a pool tells nobody that it is full
            plant(but=host_pid(box))
            await box.reset()
            assert await box.list("/tmp") == []
            assert (await pool.stats()).drifted >= 1

    lab.run(spoil())


def test_a_cell_serves_so_many_boxes_and_no_more(lab: Lab) -> None:
    async def use(max_reuses: int) -> list[int]:
        cells = []
        async with WarmPool(size=1, limits=LIMITS, max_reuses=max_reuses) as pool:
            for _ in range(16):
                async with pool.acquire(timeout=60) as box:
                    cells.append(int(box.id.split("-")[1]))
        return cells

    often = lab.run(use(0))
    twice = lab.run(use(2))
    assert max(map(often.count, often)) > 2
    assert max(map(twice.count, twice)) <= 2


def inits() -> list[int]:
    """Host pids of every PID 1 of a box."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and name_of(entry) == "tilt-init"
    ]


def plant(but: int) -> None:
    """A file in every box of a pool but one."""
    for init in inits():
        with suppress(OSError):  # a box of somebody else may end meanwhile
            if init != but and parent(init) == parent(but):
                Path(f"/proc/{init}/root/tmp/planted").touch()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def name_of(entry: Path) -> str:
    try:
        return entry.joinpath("comm").read_text().strip()
    except OSError:
        return ""


def host_pid(box: Box) -> int:
    """The host's pid of the PID 1 of a box."""
    uid = str(payload_uid(box) + 1)
    return next(pid for pid in inits() if uid_of(pid) == uid)


def uid_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0]
    except OSError:
        return ""
