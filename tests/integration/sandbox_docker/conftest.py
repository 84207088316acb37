"""One daemon, one event loop and one warm pool for the whole session; every test gets fresh boxes from it."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tests.integration.sandbox_docker.dockerd import IMAGE, Dockerd, dockerd, has_runsc, why_not
from tiltyard.sandbox import DockerBackend, ExecResult, WarmPool
from tiltyard.sandbox.capability import Demand
from tiltyard.sandbox.conformance import LIMITS

T = TypeVar("T")
UNENFORCED_BY_RUNSC = (Demand.inodes,)


class DockerLab:
    """Runs coroutines on the session's loop, each with a fresh box."""

    def __init__(self, runner: asyncio.Runner, daemon: Dockerd, pool: WarmPool) -> None:
        self._runner = runner
        self.daemon = daemon
        self.pool = pool

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def with_box(self, work: Any) -> Any:
        """`await work(box)` in a box of its own."""

        async def once() -> Any:
            async with self.pool.acquire(timeout=120) as box:
                return await work(box)

        return self.run(once())

    def python(self, code: str, **options: Any) -> ExecResult:
        """One Python program in a box of its own."""

        async def once(box: Any) -> ExecResult:
            return await box.exec(["python3", "-I", "-S", "main.py"], files={"main.py": code}, **options)

        return self.with_box(once)


@pytest.fixture(scope="session")
def daemon() -> Iterator[Dockerd]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with dockerd() as running:
        yield running
        assert not running.containers(), "a test left a container"


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


def _lab(runner: asyncio.Runner, daemon: Dockerd, backend: DockerBackend) -> Iterator[DockerLab]:
    pool = WarmPool(image=IMAGE, size=2, limits=LIMITS, backend=backend)
    runner.run(pool.start())
    yield DockerLab(runner, daemon, pool)
    runner.run(pool.close())


@pytest.fixture(scope="session")
def lab(runner: asyncio.Runner, daemon: Dockerd) -> Iterator[DockerLab]:
    """Boxes of runc."""
    yield from _lab(runner, daemon, DockerBackend(url=daemon.url))


@pytest.fixture(scope="session")
def gvisor_lab(runner: asyncio.Runner, daemon: Dockerd) -> Iterator[DockerLab]:
    """Boxes of runsc."""
    if not has_runsc():
        pytest.skip("runsc is not installed: apt-get install runsc (infra/dev/test does where Debian has it)")
    yield from _lab(runner, daemon, DockerBackend("runsc", url=daemon.url, accept=UNENFORCED_BY_RUNSC))
