"""The daemon: absent, gone in the middle, back again; what a dead owner left; images that cannot be used."""

import asyncio
import io
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sandbox_docker.conftest import DockerLab
from tests.integration.sandbox_docker.dockerd import IMAGE, Dockerd
from tiltyard.sandbox import (
    BreakerPolicy,
    BreakerState,
    CapabilityRefused,
    DockerBackend,
    ImageFault,
    SandboxError,
    SandboxUnavailable,
    WarmPool,
)
from tiltyard.sandbox.conformance import LIMITS
from tiltyard.sandbox.docker import owner

_HOLDER = """
import asyncio, sys
from tiltyard.sandbox import DockerBackend, WarmPool
async def hold():
    pool = WarmPool(image=sys.argv[2], size=2, backend=DockerBackend(url=sys.argv[1]))
    async with pool, pool.acquire() as box:
        sys.stdout.write(box.container.id + "\\n"); sys.stdout.flush()
        await box.exec(["sleep", "600"], wall_seconds=600)
asyncio.run(hold())
"""


async def _refused(backend: DockerBackend, image: str) -> SandboxError:
    with pytest.raises(SandboxError) as refused:
        await WarmPool(image=image, size=1, limits=LIMITS, backend=backend).start()
    return refused.value


def test_what_is_absent_is_named_with_the_cure(lab: DockerLab) -> None:
    url = lab.daemon.url
    absent = lab.run(_refused(DockerBackend(url="unix:///nowhere/docker.sock"), IMAGE))
    assert isinstance(absent, SandboxUnavailable)
    assert "systemctl start docker" in str(absent)
    unknown = lab.run(_refused(DockerBackend("crun-9", url=url), IMAGE))
    assert isinstance(unknown, SandboxUnavailable)
    assert "runtimes" in str(unknown)
    no_image = lab.run(_refused(DockerBackend(url=url), "no-such-image:1"))
    assert isinstance(no_image, ImageFault)
    assert IMAGE in str(no_image)
    assert isinstance(lab.run(_refused(DockerBackend(url=url), "host")), ImageFault)
    for other in (f"{IMAGE.partition(':')[0]}@sha256:{'0' * 64}", f"sha256:{'0' * 64}"):
        wrong = lab.run(_refused(DockerBackend(url=url), other))
        assert isinstance(wrong, ImageFault)
        assert other in str(wrong)


def test_a_daemon_elsewhere_and_a_virtual_machine_are_refused(lab: DockerLab) -> None:
    far = lab.run(_refused(DockerBackend(url="tcp://192.0.2.1:2375"), IMAGE))
    assert isinstance(far, CapabilityRefused)
    with pytest.raises(CapabilityRefused, match="virtual machine"):
        DockerBackend("kata-qemu")


def test_an_image_with_volumes_is_refused_for_nothing_bounds_them(lab: DockerLab) -> None:
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    client = lab.daemon.client()
    try:
        client.import_image_from_data(
            empty.getvalue(), repository="volumes", tag="1", changes=["VOLUME /data"]
        )
        refused = lab.run(_refused(DockerBackend(url=lab.daemon.url), "volumes:1"))
        assert isinstance(refused, ImageFault)
        assert "/data" in str(refused)
    finally:
        client.remove_image("volumes:1")
        client.close()


def test_what_a_killed_owner_held_ends_and_is_swept(lab: DockerLab) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, lab.daemon.url, IMAGE], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder.stdout:
        held = holder.stdout.readline().strip()
        assert held in {each["Id"] for each in lab.daemon.containers()}
        holder.kill()
        holder.wait()
    running = lab.run(_until_ended(lab.daemon, f"{holder.pid}-"))
    assert running == []

    lab.run(_open_and_close(lab))
    assert _of_owner(lab.daemon, f"{holder.pid}-") == []
    assert not [
        each for each in Path("/run/tiltyard/docker").iterdir() if each.name.startswith(f"{holder.pid}-")
    ]


def test_the_sweep_ends_a_dead_owners_running_container_and_no_living_ones(lab: DockerLab) -> None:
    client = lab.daemon.client()
    mine = owner.enter()
    try:
        dead = {**mine.labels, owner.OWNER: "999999999-1"}
        labels = {"dead": dead, "mine": mine.labels, "elsewhere": {**dead, owner.REALM: "another-boot"}}
        made = {name: _sleeper(client, each) for name, each in labels.items()}
        lab.run(_open_and_close(lab))
        left = {each["Id"] for each in lab.daemon.containers()}
        assert made["dead"] not in left
        assert {made["mine"], made["elsewhere"]} <= left
        for name in ("mine", "elsewhere"):
            client.remove_container(made[name], force=True)
    finally:
        mine.leave()
        client.close()


def test_boxes_outlive_a_daemon_that_is_killed_and_come_again_with_it(lab: DockerLab) -> None:
    async def use() -> None:
        backend = DockerBackend(url=lab.daemon.url)
        policy = BreakerPolicy(least=2, rest_seconds=0.2, most_rest_seconds=0.2)
        async with WarmPool(image=IMAGE, size=1, limits=LIMITS, backend=backend, breaker=policy) as pool:
            try:
                async with pool.acquire() as box:
                    lab.daemon.stop(signal.SIGKILL)
                    assert (await box.exec(["echo", "still"])).stdout == b"still\n"
                with pytest.raises(SandboxUnavailable, match="docker"):
                    await pool.borrow(1, timeout=120)
                while not pool.health().failed:  # noqa: ASYNC110 - the pool tells nobody
                    await asyncio.sleep(0.1)
                assert "could not be made" in pool.health().reason
            finally:
                lab.daemon.start()
            assert await _once_it_is_back(pool) == b"again\n"
            assert pool.health().state is BreakerState.closed

    lab.run(use())
    assert lab.run(_once_it_is_back(lab.pool)), "another pool of the same daemon came back too"


async def _once_it_is_back(pool: WarmPool) -> bytes:
    """Until a box is ready again, asking for one says why there is none."""
    while True:
        try:
            async with pool.acquire(timeout=120) as box:
                return (await box.exec(["echo", "again"])).stdout
        except SandboxUnavailable:
            await asyncio.sleep(0.2)


def _sleeper(client: Any, labels: dict[str, str]) -> str:
    made = client.create_container(
        IMAGE, ["sleep", "600"], labels=labels, host_config=client.create_host_config(network_mode="none")
    )["Id"]
    client.start(made)
    return made


def _of_owner(daemon: Dockerd, prefix: str) -> list[dict[str, Any]]:
    return [each for each in daemon.containers() if each["Labels"].get(owner.OWNER, "").startswith(prefix)]


async def _until_ended(daemon: Dockerd, prefix: str) -> list[str]:
    """Containers of an owner that still run after a minute."""
    running: list[str] = []
    for _ in range(600):
        running = [each["Id"] for each in _of_owner(daemon, prefix) if each["State"] == "running"]
        if not running:
            break
        await asyncio.sleep(0.1)
    return running


async def _open_and_close(lab: DockerLab) -> None:
    backend = DockerBackend(url=lab.daemon.url)
    async with WarmPool(image=IMAGE, size=1, limits=LIMITS, backend=backend):
        pass
