"""Boxes of runsc: gVisor's kernel, and what it cannot hold said before it is needed."""

import asyncio
import errno
import socket

import pytest

from tests.integration.sandbox_docker.conftest import UNENFORCED_BY_RUNSC, DockerLab
from tests.integration.sandbox_docker.dockerd import IMAGE
from tiltyard.sandbox import CapabilityRefused, DockerBackend, FileFault, SandboxUnavailable, WarmPool
from tiltyard.sandbox.conformance import LIMITS
from tiltyard.sandbox.docker.box import DockerBox


def test_its_payload_meets_another_kernel(gvisor_lab: DockerLab) -> None:
    said = gvisor_lab.python("print(open('/proc/version').read())").stdout.decode()
    with open("/proc/version", encoding="utf-8") as ours:
        assert said.strip()
        assert said.strip() != ours.read().strip()


def test_its_payload_has_no_capability(gvisor_lab: DockerLab) -> None:
    said = gvisor_lab.python("print(open('/proc/self/status').read())").stdout.decode()
    found = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert {found[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
    assert (found["Seccomp"], found["Uid"].split()[0]) == ("2", "1000")


def test_files_go_in_and_out_and_no_link_is_followed(gvisor_lab: DockerLab) -> None:
    async def carry(box: DockerBox) -> None:
        await box.write("deep/er/data", b"x" * 300_000)
        assert await box.read("deep/er/data") == b"x" * 300_000
        code = "import os; print(*(os.stat(p).st_uid for p in ('deep', 'deep/er/data', '/box')))"
        assert (await box.exec(["python3", "-I", "-S", "-c", code])).stdout.split() == [b"1000"] * 3
        assert (await box.exec(["ln", "-s", "/etc/passwd", "link"])).ok
        assert (await box.exec(["ln", "-s", "/etc", "folder"])).ok
        for path in ("link", "folder/passwd"):
            with pytest.raises(FileFault) as refused:
                await box.read(path)
            assert refused.value.error in (errno.ELOOP, errno.ENOTDIR)

    gvisor_lab.with_box(carry)


def test_descriptors_are_refused_and_the_box_stays_good(gvisor_lab: DockerLab) -> None:
    async def talk(box: DockerBox) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(CapabilityRefused, match="descriptors"):
            await box.exec(["true"], fds={5: theirs})
        assert (await box.exec(["true"])).ok

    gvisor_lab.with_box(talk)


def test_limits_that_it_cannot_enforce_are_refused_by_name(gvisor_lab: DockerLab) -> None:
    async def use() -> None:
        backend = DockerBackend("runsc", url=gvisor_lab.daemon.url)
        with pytest.raises(CapabilityRefused, match=r"inodes.*--accept inodes"):
            await WarmPool(image=IMAGE, size=1, limits=LIMITS, backend=backend).start()

    gvisor_lab.run(use())


def test_a_runsc_that_may_not_use_the_socket_says_how_to_let_it(gvisor_lab: DockerLab) -> None:
    async def use() -> None:
        backend = DockerBackend("runsc-bare", url=gvisor_lab.daemon.url, accept=UNENFORCED_BY_RUNSC)
        with pytest.raises(SandboxUnavailable, match="--host-uds=open"):
            await WarmPool(image=IMAGE, size=1, limits=LIMITS, backend=backend).start()

    gvisor_lab.run(asyncio.wait_for(use(), 120))
