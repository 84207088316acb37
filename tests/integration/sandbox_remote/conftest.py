"""Both providers' stand-ins, and pools of their sandboxes; each test has its own, on a loop of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.integration.sandbox_remote.cluster import CLAIMS, Cluster
from tests.integration.sandbox_remote.e2b import E2B
from tiltyard.sandbox import Limits, SandboxBackend, WarmPool
from tiltyard.sandbox.capability import OF_EVERY_BOX
from tiltyard.sandbox.remote import AgentSandboxBackend, E2BBackend

T = TypeVar("T")

LIMITS = Limits(memory_mb=256, disk_mb=64, cpus=1)
TURNS = 4000
TURN_SECONDS = 0.005


@dataclass(frozen=True)
class Provider:
    """How one provider is stood in for, and spoken to."""

    name: str
    image: str
    create: str
    """method and path of a creation"""
    execute: str
    stand_in: Callable[[Path], Any]
    backend: Callable[..., SandboxBackend]
    alive: Callable[[Any], list[str]]
    """the sandboxes that a stand-in has"""
    plant: Callable[[Any, str, str, str], Awaitable[str]]
    """makes a sandbox of an owner, incarnation and key behind everybody's back; its number"""
    vanish: Callable[[Any, str], Awaitable[None]]


def e2b_backend(stand_in: E2B, **options: Any) -> SandboxBackend:
    told = {"accept": OF_EVERY_BOX, "requests_per_second": 1000, "owner": "me", **options}
    return E2BBackend(api_key=stand_in.key, api_url=stand_in.url, sandbox_url=stand_in.url, **told)


def cluster_backend(stand_in: Cluster, **options: Any) -> SandboxBackend:
    told = {"accept": OF_EVERY_BOX, "requests_per_second": 1000, "owner": "me", **options}
    return AgentSandboxBackend(
        api_url=stand_in.url,
        token=stand_in.token,
        namespace="train",
        router_url=stand_in.url,
        router_token=stand_in.router_token,
        **told,
    )


async def plant_e2b(stand_in: E2B, owner: str, incarnation: str, key: str) -> str:
    metadata = {"tiltyard-owner": owner, "tiltyard-incarnation": incarnation, "tiltyard-key": key}
    async with httpx.AsyncClient(headers={"x-api-key": stand_in.key}) as client:
        wanted = {"templateID": "base", "timeout": 600, "metadata": metadata}
        return (await client.post(f"{stand_in.url}/sandboxes", json=wanted)).json()["sandboxID"]


async def plant_cluster(stand_in: Cluster, owner: str, incarnation: str, key: str) -> str:
    labels = {"tiltyard.dev/owner": owner, "tiltyard.dev/incarnation": incarnation}
    life = {"shutdownTime": "2100-01-01T00:00:00Z"}
    wanted = {"metadata": {"name": f"tiltyard-{key}", "labels": labels}, "spec": {"lifecycle": life}}
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {stand_in.token}"}) as client:
        await client.post(stand_in.url + CLAIMS, json=wanted)
    return f"tiltyard-{key}"


async def vanish_e2b(stand_in: E2B, ident: str) -> None:
    stand_in.vanish(ident)


async def vanish_cluster(stand_in: Cluster, ident: str) -> None:
    await stand_in.vanish(ident)


PROVIDERS = (
    Provider("e2b", "base", "POST /v2/sandboxes", "POST /process.Process/Start", E2B, e2b_backend,
             lambda stand_in: list(stand_in.machines), plant_e2b, vanish_e2b),
    Provider("agent-sandbox", "python", f"POST {CLAIMS}", "POST /execute", Cluster, cluster_backend,
             lambda stand_in: list(stand_in.claims), plant_cluster, vanish_cluster),
)  # fmt: skip


class Abroad:
    """One provider and its stand-in, for one test."""

    def __init__(self, provider: Provider, folder: Path) -> None:
        self.provider = provider
        self.there = provider.stand_in(folder)

    @property
    def alive(self) -> list[str]:
        return self.provider.alive(self.there)

    def backend(self, **options: Any) -> SandboxBackend:
        return self.provider.backend(self.there, **options)

    @asynccontextmanager
    async def pool(self, size: int = 1, **options: Any) -> AsyncIterator[WarmPool]:
        """A running pool; the stand-in must be serving."""
        pool = WarmPool(image=self.provider.image, size=size, limits=LIMITS, backend=self.backend(**options))
        async with pool:
            yield pool

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """`work` while the stand-in serves."""

        async def serve() -> T:
            async with self.there.serving():
                return await work()

        return asyncio.run(serve())

    def with_box(self, work: Callable[[Any], Awaitable[T]], **options: Any) -> T:
        """`work` with a box of a pool of one."""

        async def once() -> T:
            async with self.pool(**options) as pool, pool.acquire(timeout=60) as box:
                return await work(box)

        return self.run(once)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds, for 20 s."""
    for _ in range(TURNS):
        if holds():
            return
        await asyncio.sleep(TURN_SECONDS)
    raise AssertionError("it never came to hold")


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name)
def abroad(request: pytest.FixtureRequest, tmp_path: Path) -> Abroad:
    return Abroad(request.param, tmp_path)


@pytest.fixture
def e2b(tmp_path: Path) -> Abroad:
    return Abroad(PROVIDERS[0], tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> Abroad:
    return Abroad(PROVIDERS[1], tmp_path)
