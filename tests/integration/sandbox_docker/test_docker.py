"""Boxes of runc: what they are made of, what they hand over, how they end."""

import asyncio
import errno
import os
import signal
import socket
import time
from typing import Any

import pytest

from tests.integration.sandbox_docker.conftest import DockerLab
from tests.integration.sandbox_docker.dockerd import IMAGE
from tiltyard.sandbox import (
    DockerBackend,
    ExecOutcome,
    FileFault,
    InvalidExec,
    SandboxGone,
    SandboxPaused,
    WarmPool,
)
from tiltyard.sandbox.conformance import LIMITS
from tiltyard.sandbox.docker.box import DockerBox


def _inspect(lab: DockerLab, box: DockerBox) -> dict[str, Any]:
    client = lab.daemon.client()
    try:
        return client.inspect_container(box.container.id)
    finally:
        client.close()


def test_its_container_has_no_right_and_no_way_out(lab: DockerLab) -> None:
    async def look(box: DockerBox) -> dict[str, Any]:
        return _inspect(lab, box)

    found = lab.with_box(look)
    host = found["HostConfig"]
    assert (host["CapDrop"], host["ReadonlyRootfs"], host["Privileged"]) == (["ALL"], True, False)
    assert (host["NetworkMode"], host["LogConfig"]["Type"], host["IpcMode"]) == ("none", "none", "private")
    assert host["Memory"] == host["MemorySwap"] == LIMITS.memory_bytes
    assert (host["PidsLimit"], host["NanoCpus"]) == (LIMITS.pids + 1, int(LIMITS.cpus * 1e9))
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert found["Config"]["Labels"]["tiltyard.owner"].startswith(f"{os.getpid()}-")
    assert all(mount["RW"] is False for mount in found["Mounts"])


def test_a_paused_container_stands_still_goes_on_and_can_be_given_back(lab: DockerLab) -> None:
    async def rest(box: DockerBox) -> str:
        counting = await box.start(["sh", "-c", "while true; do echo x; sleep 0.01; done"], idle_seconds=60)
        await counting.more()
        await box.pause()
        assert _inspect(lab, box)["State"]["Paused"]
        await asyncio.sleep(0.2)
        seen = counting.output().end
        await asyncio.sleep(0.3)
        assert counting.output().end == seen
        with pytest.raises(SandboxPaused, match="resume"):
            await box.exec(["true"])
        await box.resume()
        assert (await counting.more(offset=seen)).data
        assert (await box.exec(["true"])).ok
        await box.pause()
        await box.reset()
        assert (await box.exec(["true"])).ok
        await box.pause()
        return box.container.id

    paused = lab.with_box(rest)
    client = lab.daemon.client()
    try:
        for _ in range(600):
            if not client.containers(all=True, filters={"id": paused}):
                break
            time.sleep(0.05)
        assert not client.containers(all=True, filters={"id": paused})
    finally:
        client.close()


def test_its_payload_has_no_capability(lab: DockerLab) -> None:
    said = lab.python("print(open('/proc/self/status').read())").stdout.decode()
    found = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert {found[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (found["NoNewPrivs"], found["Seccomp"], found["Uid"].split()[0]) == ("1", "2", "1000")


def test_its_payload_finds_no_socket_and_cannot_change_what_runs_as_pid_1(lab: DockerLab) -> None:
    code = """
import os
print(os.listdir("/.tilt/socket"))
for attempt in (lambda: open("/.tilt/init", "r+"), lambda: open("/.tilt/socket/x", "w"),
                lambda: os.unlink("/.tilt/init"), lambda: open("/proc/1/exe", "r+")):
    try: attempt(); print("done")
    except OSError: print("denied")
"""
    assert lab.python(code).stdout.decode().split("\n")[:-1] == ["[]", *["denied"] * 4]


def test_descriptors_pass_into_it(lab: DockerLab) -> None:
    async def talk(box: DockerBox) -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.send(b"question")
            code = "import socket; s = socket.socket(fileno=5); s.send(s.recv(99)[::-1])"
            assert (await box.exec(["python3", "-I", "-S", "-c", code], fds={5: theirs})).ok
            return ours.recv(99)

    assert lab.with_box(talk) == b"noitseuq"


def test_files_go_in_and_out_and_no_link_is_followed(lab: DockerLab) -> None:
    async def carry(box: DockerBox) -> None:
        data = os.urandom(3_000_000)
        await box.write("deep/er/data", data)
        assert await box.read("deep/er/data", max_bytes=len(data)) == data
        assert (await box.exec(["ln", "-s", "/etc/passwd", "link"])).ok
        assert (await box.exec(["ln", "-s", "/etc", "folder"])).ok
        for path in ("link", "folder/passwd"):
            with pytest.raises(FileFault) as refused:
                await box.read(path)
            assert refused.value.error in (errno.ELOOP, errno.ENOTDIR)

    lab.with_box(carry)


def test_all_that_it_writes_together_stays_within_the_disk(lab: DockerLab) -> None:
    code = """
import errno
sizes = []
for folder in ("/box", "/tmp", "/dev/shm"):
    with open(folder + "/fill", "wb", buffering=0) as out:
        try:
            while True: out.write(bytes(65536))
        except OSError as error: assert error.errno in (errno.ENOSPC, errno.EFBIG)
    sizes.append(__import__("os").stat(folder + "/fill").st_size)
print(sum(sizes))
"""
    written = int(lab.python(code).stdout)
    assert LIMITS.disk_bytes // 2 < written <= LIMITS.disk_bytes


def test_a_released_box_is_seen_to_end(lab: DockerLab) -> None:
    async def use() -> None:
        backend = DockerBackend(url=lab.daemon.url)
        async with WarmPool(image=IMAGE, size=1, limits=LIMITS, backend=backend) as pool:
            async with pool.acquire() as box:
                assert isinstance(box, DockerBox)
                state = _inspect(lab, box)["State"]
                assert state["Running"]
                await box.exec(["sh", "-c", "true"])
            while (await pool.stats()).destroyed < 1:  # noqa: ASYNC110 - the pool tells nobody
                await asyncio.sleep(0.02)
            with pytest.raises(ProcessLookupError):
                os.kill(state["Pid"], 0)
            assert box.container.id not in {each["Id"] for each in lab.daemon.containers()}
            with pytest.raises(SandboxGone):
                await box.exec(["true"])

    lab.run(use())


def test_a_cancelled_command_takes_its_box_along(lab: DockerLab) -> None:
    async def cancel(box: DockerBox) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.exec(["sleep", "60"]), 0.5)
        with pytest.raises(SandboxGone, match="cancelled"):
            await box.exec(["true"])

    lab.with_box(cancel)


def test_a_pool_never_has_more_containers_than_boxes(lab: DockerLab) -> None:
    async def use() -> None:
        backend = DockerBackend(url=lab.daemon.url)
        async with WarmPool(image=IMAGE, size=2, limits=LIMITS, backend=backend) as pool:
            for _ in range(4):
                async with pool.acquire() as box:
                    assert (await box.exec(["true"])).outcome is ExecOutcome.ok
                assert len(lab.daemon.containers()) <= lab.pool.size + pool.size
        assert len(lab.daemon.containers()) <= lab.pool.size

    lab.run(use())


def test_a_reset_box_is_another_container_that_shows_nothing_of_before(lab: DockerLab) -> None:
    async def again(box: DockerBox) -> None:
        before = box.container.id
        await box.start(["sleep", "600"])
        assert (await box.exec(["sh", "-c", "for d in /box /tmp /dev/shm; do echo x > $d/x; done"])).ok
        await box.reset()
        assert box.container.id != before
        assert (await box.exec(["ls", "-A", "/box", "/tmp", "/dev/shm"])).stdout.split() == [
            *(b"/box:", b"/dev/shm:", b"/tmp:")
        ]
        while before in {each["Id"] for each in lab.daemon.containers()}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await box.stats()).background == 0
        assert (await lab.pool.stats()).drifted == 0

    lab.with_box(again)


def test_a_box_that_was_released_is_not_reset(lab: DockerLab) -> None:
    async def use() -> None:
        async with lab.pool.acquire(timeout=120) as box:
            pass
        with pytest.raises(SandboxGone, match="released"):
            await box.reset()

    lab.run(use())


def test_a_snapshot_is_given_to_fresh_containers(lab: DockerLab) -> None:
    async def keep(box: DockerBox) -> Any:
        await box.write("folder/file", "kept")
        await box.write("/tmp/other", "too")
        return await box.snapshot()

    snapshot = lab.with_box(keep)

    async def use() -> None:
        async with lab.pool.fork(snapshot, 2, timeout=120) as boxes:
            for box in boxes:
                assert (await box.read("folder/file"), await box.read("/tmp/other")) == (b"kept", b"too")

    lab.run(use())


def test_what_no_command_can_be_given_is_refused_and_the_box_stays_good(lab: DockerLab) -> None:
    async def ask(box: DockerBox) -> None:
        with pytest.raises(InvalidExec, match="as a file or stdin"):
            await box.exec(["echo", "x" * 5_000_000])
        assert (await box.exec([b"touch", b"a\xff"])).ok
        assert [entry.name for entry in await box.list()] == ["a\udcff"]
        with pytest.raises(FileFault) as full:
            await box.write("large", b"x" * (LIMITS.disk_bytes + 1))
        assert full.value.error in (errno.ENOSPC, errno.EFBIG)
        assert (await box.exec(["rm", "-f", "large"])).ok
        assert (await box.exec(["true"])).ok

    lab.with_box(ask)


def test_a_container_that_is_killed_under_its_command_is_the_platforms_fault(lab: DockerLab) -> None:
    async def kill(box: DockerBox) -> None:
        said = asyncio.Event()
        parts: list[bytes] = []

        def hear(_: str, part: bytes) -> None:
            parts.append(part)
            said.set()

        command = ["sh", "-c", "echo early; exec sleep 600"]
        running = asyncio.create_task(box.exec(command, wall_seconds=600, on_output=hear))
        await said.wait()
        os.kill(_inspect(lab, box)["State"]["Pid"], signal.SIGKILL)
        assert (await running).outcome is ExecOutcome.infra_error
        assert b"".join(parts) == b"early\n"

    lab.with_box(kill)
