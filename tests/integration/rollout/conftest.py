"""Policy versions in a real database and a real object store, and services over them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from services.rollout.app import create_app
from services.rollout.completions import Ports
from services.rollout.engine import Engine
from services.rollout.gauges import Gauges
from services.rollout.versions import Load, Versions
from tests.unit.rollout.checkpoints import save_llama
from tiltyard.contracts.run_config import SftRun
from tiltyard.objects import ObjectStore, open_store
from tiltyard.store import policies, runs, tenants
from tiltyard.store.database import AsyncUnitOfWork, UnitOfWork
from tiltyard.telemetry.metrics import Metrics
from tiltyard.telemetry.recorder import SpanRecorder

NOBODY = f"sha256:{'0' * 64}"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """Where a test publishes policy versions."""

    work: UnitOfWork
    objects: ObjectStore
    database_url: str
    objects_url: str

    def run(self, name: str) -> str:
        """A run of this name; its id."""
        with self.work() as session:
            tenants.ensure(session)
            return runs.create(session, tenants.DEFAULT, SftRun(name=name, kind="sft", dataset=NOBODY))

    def publish(self, run_id: str, version: int, folder: Path | None = None) -> None:
        """A version whose files are those of a folder, or which has none."""
        prefix = f"runs/{run_id}/policies/{version}/1/"
        paths = sorted(folder.iterdir()) if folder else []
        self.row(
            run_id, version, prefix, {p.name: self.objects.put(prefix + p.name, p).sha256 for p in paths}
        )

    def row(self, run_id: str, version: int, prefix: str, files: Mapping[str, str]) -> None:
        with self.work() as session:
            policies.publish(
                session, run_id, version, step=None, prefix=prefix, files=files, checkpoint=False
            )

    def withdraw_after(self, run_id: str, version: int) -> None:
        with self.work() as session:
            policies.withdraw_after(session, run_id, version)


@pytest.fixture
def shelf(database_url: str, tmp_path: Path) -> Iterator[Shelf]:
    objects_url = f"file://{tmp_path}/objects"
    objects = open_store(objects_url)
    objects.prepare()
    work = UnitOfWork(database_url)
    yield Shelf(work=work, objects=objects, database_url=database_url, objects_url=objects_url)
    work.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Folder of the checkpoint that a seed makes."""
    made: dict[int, Path] = {}

    def folder(seed: int) -> Path:
        if seed not in made:
            made[seed] = save_llama(tmp_path_factory.mktemp(f"checkpoint{seed}"), seed=seed)
        return made[seed]

    return folder


class InProcess:
    """The application in the test's own event loop: `async with InProcess(…) as service`."""

    def __init__(
        self, database_url: str, engine: Engine, load: Load, *, keep: int = 4, gauges: Gauges | None = None
    ) -> None:
        self._work = AsyncUnitOfWork(database_url, connections=4)
        self.engine = engine
        self.versions = Versions(self._work, load, tenant=tenants.DEFAULT, keep=keep)
        self.recorder = SpanRecorder()
        self._ports = Ports(
            versions=self.versions, engine=engine, gauges=gauges or Gauges(Metrics()), recorder=self.recorder
        )

    async def __aenter__(self) -> "InProcess":
        transport = httpx.ASGITransport(create_app(self._ports), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://rollout", timeout=60)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        self.versions.close()
        await self._work.close()
        self.engine.close()

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": "p", **body})
