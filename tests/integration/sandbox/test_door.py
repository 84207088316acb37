"""Programs that are not root use sandboxes through tilt-door, and nothing else of root's.

Each caller is a process of its own that gives root up after its imports, since the interpreter may lie
where only root can read."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tiltyard.sandbox.native.host import DOOR
from tiltyard.sandbox.native.image import host_image
from tiltyard.sandbox.native.toolchain import current_helpers

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root"),
    pytest.mark.skipif(DOOR.exists(), reason="this machine has a door of its own"),
]
GROUP, MEMBER = 61_234, 61_235
CALLER = """
import asyncio, os, sys
from tiltyard.sandbox import Limits, SandboxError, WarmPool
asyncio.run(asyncio.to_thread(int))
image, uid, group, work = sys.argv[1:]
os.setgroups([]); os.setresgid(int(group), int(group), int(group)); os.setresuid(int(uid), int(uid), int(uid))
async def main():
    limits = Limits(memory_mb=64, pids=32, disk_mb=8)
    async with WarmPool(image=image, size=2, limits=limits) as pool, pool.acquire() as box:
        result = await box.exec(["sh", "-c", "echo inside"])
        print(result.stdout.decode().strip(), box.id.split("-")[1], flush=True)
        if work == "hold":
            await asyncio.sleep(600)
try:
    asyncio.run(main())
except SandboxError as error:
    print(error)
"""


def _until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@dataclass(frozen=True)
class Door:
    """A door of the test's own group."""

    process: "subprocess.Popen[str]"
    image: str

    def hosts(self) -> list[int]:
        """Every tilt-host that it started and that lives."""
        if self.process.poll() is not None:
            return []
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def call(self, *, uid: int = MEMBER, group: int = GROUP, work: str = "once") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", CALLER, self.image, str(uid), str(group), work],
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def said(self, **who: int) -> str:
        return self.call(**who).communicate(timeout=60)[0].strip()  # type: ignore[arg-type]


@contextmanager
def opened(*, most: int = 8) -> Iterator[Door]:
    image = host_image()
    words = [current_helpers().door, str(image.store), str(GROUP), str(most)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == f"tilt-door: open at {DOOR}\n"
    door = Door(process, f"sha256:{image.digest}")
    try:
        yield door
        _until(lambda: not door.hosts(), "a tilt-host outlived its caller")
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


@pytest.fixture
def door() -> Iterator[Door]:
    with opened() as found:
        yield found


def test_a_member_of_the_group_that_is_not_root_uses_sandboxes(door: Door) -> None:
    assert door.said().startswith("inside ")


def test_nobody_else_comes_in(door: Door) -> None:
    said = door.said(group=MEMBER)
    assert f"uid {MEMBER} and may not use {DOOR}" in said
    assert "tiltyard sandbox door --group" in said


def test_without_a_door_the_error_says_how_to_open_one() -> None:
    assert not DOOR.exists()
    told = Door(process=None, image=f"sha256:{host_image().digest}").said()  # type: ignore[arg-type]
    assert f"finds no {DOOR}: open it with `sudo tiltyard sandbox door --group GROUP`" in told


def test_a_killed_caller_leaves_nothing(door: Door) -> None:
    caller = door.call(work="hold")
    assert caller.stdout is not None
    _, cell = caller.stdout.readline().split()
    cgroups = [p for p in Path("/sys/fs/cgroup").glob(f"**/tiltyard/c{cell}") if p.is_dir()]
    assert cgroups
    caller.kill()
    caller.communicate()
    _until(lambda: not any(p.exists() for p in cgroups), "cgroups outlived the caller")


def test_who_came_in_stays_when_the_door_is_closed() -> None:
    with opened() as door:
        caller = door.call(work="hold")
        assert caller.stdout is not None
        assert caller.stdout.readline().startswith("inside ")
        (host,) = door.hosts()
        door.process.send_signal(signal.SIGTERM)
        door.process.wait()
        assert not DOOR.exists()
        assert Path(f"/proc/{host}").exists()
        caller.kill()
        caller.communicate()
        _until(lambda: not Path(f"/proc/{host}").exists(), "tilt-host outlived its caller")


def test_a_second_door_is_refused(door: Door) -> None:
    words = [current_helpers().door, "/", str(GROUP), "1"]
    second = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert f"tilt-door: {DOOR}: Address already in use" in second.stderr
    assert door.said().startswith("inside ")


def test_a_caller_beyond_the_most_waits_for_another_to_go() -> None:
    with opened(most=1) as door:
        first = door.call(work="hold")
        assert first.stdout is not None
        assert first.stdout.readline().startswith("inside ")
        second = door.call()
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=2)
        assert len(door.hosts()) == 1
        first.kill()
        first.communicate()
        assert second.communicate(timeout=60)[0].startswith("inside ")


@pytest.mark.parametrize(
    "request_", [b"x", b"\1\0\0\0" + b"../" * 40, bytes(4096)], ids=["short", "path", "long"]
)
def test_what_is_no_request_gets_nothing_made(door: Door, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.connect(str(DOOR))
        caller.settimeout(60)
        caller.send(request_)
        answer = caller.recv(512)
    assert int.from_bytes(answer[:4], sys.byteorder) == 5  # refused


def test_the_command_opens_it_for_a_group() -> None:
    words = ["sandbox", "door", "--group", str(GROUP), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == f"tilt-door: open at {DOOR}\n"
    assert Door(process, f"sha256:{host_image().digest}").said().startswith("inside ")
    process.terminate()
    told, _ = process.communicate(timeout=60)
    assert json.loads(told) == {"door": str(DOOR), "group": GROUP, "most": 64}
    assert process.returncode == 0


def test_a_door_whose_programs_others_could_change_does_not_open(tmp_path: Path) -> None:
    for helper in current_helpers().programs:
        copy = tmp_path / helper.name
        copy.write_bytes(helper.read_bytes())
        copy.chmod(0o777)
    told = subprocess.run(
        [tmp_path / "tilt-door", "/", str(GROUP), "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 1
    assert "can be changed by others than root" in told.stderr
