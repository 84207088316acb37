"""Who the payload is to the host: a uid of its own in each box of each process, and no right."""

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import Lab, alive, payload_uid, said
from tiltyard.sandbox import Box

pytestmark = pytest.mark.sandbox


def test_the_payload_is_nobody_on_the_host_and_has_no_right(lab: Lab) -> None:
    async def look(box: Box) -> tuple[list[str], dict[str, str]]:
        command = asyncio.create_task(box.exec(["sh", "-c", "cat /proc/self/status; sleep 0.5"]))
        while not (seen := [line for line in alive(payload_uid(box)) if "sleep\0" in line]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # nothing tells when a process of the host appears
        status = said(await command)
        return seen, dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    seen, status = lab.with_box(look)
    assert seen == ["sleep\x000.5\x00"]
    assert lab.last_uid >= 1_900_000_000
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Groups"].split() == []
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def processes_named(*words: str) -> list[int]:
    """Host pids whose command line is exactly these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.joinpath("cmdline").read_bytes().split(b"\0")[:-1] == [
                    word.encode() for word in words
                ]:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_uids_of_live_boxes_differ_across_pools_and_processes(lab: Lab) -> None:
    tag = f"{secrets.randbelow(10**6) + 1000}"
    script = f"""
import asyncio
from tiltyard.sandbox import WarmPool, Limits
async def main():
    async with WarmPool(size=3, limits=Limits(memory_mb=64, disk_mb=8)) as pool:
        async with pool.acquire_many(3) as boxes:
            tasks = [asyncio.ensure_future(box.exec(["sleep", "{tag}"], wall_seconds=100)) for box in boxes]
            await asyncio.sleep(.3)
            print("ready", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, input)
asyncio.run(main())
"""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
        uids = [os.stat(f"/proc/{pid}").st_uid for pid in processes_named("sleep", tag)]
    finally:
        for other in others:
            other.communicate("\n")
    assert len(uids) == 6
    assert len(set(uids)) == 6
