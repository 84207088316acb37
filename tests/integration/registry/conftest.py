"""A registry over a real Postgres and a real directory, reached as a client reaches it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from services.registry.app import create_app
from services.registry.gauges import Gauges
from services.registry.ports import Ports
from tests.integration.registry.documents import BODY_LIMIT, TOKEN
from tiltyard.objects import open_store
from tiltyard.store import tenants
from tiltyard.store.database import AsyncUnitOfWork, UnitOfWork
from tiltyard.telemetry.metrics import Metrics
from tiltyard.testing.rows import Rows


@dataclass
class Announced:
    """A publisher that remembers."""

    topics: list[str] = field(default_factory=list)
    jobs: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def announce(self, *topics: str) -> None:
        self.topics += topics

    def enqueue(self, kind: str, ids: tuple[str, ...]) -> None:
        self.jobs.append((kind, tuple(ids)))


@pytest.fixture
def announced() -> Announced:
    return Announced()


@pytest.fixture
def objects(tmp_path: Path) -> Any:
    store = open_store(f"file://{tmp_path}/objects")
    store.prepare()
    return store


@pytest.fixture
def work(database_url: str) -> Iterator[UnitOfWork]:
    """Direct access to the rows, beside the API."""
    made = UnitOfWork(database_url)
    with made() as session:
        tenants.ensure(session)
    yield made
    made.close()


@pytest.fixture
def make_client(
    database_url: str, work: UnitOfWork, objects: Any, announced: Announced
) -> Iterator[Callable[..., TestClient]]:
    """Makes clients of a registry; each ends with the test."""
    opened: list[tuple[TestClient, AsyncUnitOfWork]] = []

    def make(url: str = database_url, *, store: Any = objects, token: str | None = TOKEN) -> TestClient:
        async_work = AsyncUnitOfWork(url, connections=4)
        ports = Ports(
            work=async_work,
            objects=store,
            publisher=announced,
            tenant=tenants.DEFAULT,
            token=TOKEN,
            max_artifact_bytes=2 * BODY_LIMIT,
        )
        app = create_app(ports, Gauges(Metrics()), hosts=("testserver",), body_limit=BODY_LIMIT)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = TestClient(app, headers=headers, raise_server_exceptions=False)
        client.__enter__()
        opened.append((client, async_work))
        return client

    yield make
    for client, async_work in opened:
        assert client.portal is not None
        client.portal.call(async_work.close)
        client.__exit__(None, None, None)


@pytest.fixture
def api(make_client: Callable[..., TestClient]) -> TestClient:
    """A client with the token."""
    return make_client()


@pytest.fixture
def rows(work: UnitOfWork) -> Rows:
    """Writes rows through the store, as the other services would."""
    return Rows(work)


@pytest.fixture
def server(database_url: str, work: UnitOfWork, objects: Any, announced: Announced) -> Iterator[str]:
    """URL of a registry behind a real HTTP server."""
    with contextlib.ExitStack() as stack:
        async_work = AsyncUnitOfWork(database_url, connections=4)
        ports = Ports(
            work=async_work,
            objects=objects,
            publisher=announced,
            tenant=tenants.DEFAULT,
            token=TOKEN,
            max_artifact_bytes=50_000_000,
        )
        app = create_app(ports, Gauges(Metrics()), body_limit=32_000_000)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        running = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))

        async def serve() -> None:
            await running.serve(sockets=[listening])
            await async_work.close()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        running.should_exit = True
        thread.join()
