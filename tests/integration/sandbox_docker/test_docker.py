"""Boxes of runc: what they are made of, what they hand over, how they end."""

import asyncio
import errno
import os
import socket
from typing import Any

import pytest

from tests.integration.sandbox_docker.conftest import DockerLab
from tests.integration.sandbox_docker.dockerd import IMAGE
from tiltyard.sandbox import DockerBackend, ExecOutcome, FileFault, SandboxGone, WarmPool
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
