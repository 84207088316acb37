"""Runner processes against a real database and a real rollout service that recites."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiltyard.objects import ObjectStore, open_store
from tiltyard.store import policies
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.processes import Processes, Service, free_port
from tiltyard.testing.rows import Rows, Seeded, addition

ANSWER = "return x+1"


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    work = UnitOfWork(database_url)
    yield Rows(work)
    work.close()


@dataclass(frozen=True, kw_only=True)
class Yard:
    """Everything around a runner."""

    rows: Rows
    objects: ObjectStore
    processes: Processes
    rollout_url: str

    def seed(self, **limits: Any) -> Seeded:
        """A run whose policy answers right."""
        seeded = self.rows.run(addition(instruction=f"answer: {ANSWER}\n", limits=limits))
        with self.rows.work() as session:
            policies.publish(session, seeded.run_id, 0, step=None, prefix="none", files={}, checkpoint=False)
        return seeded

    def start_rollout(self, **settings: str) -> Service:
        host, _, port = self.rollout_url.removeprefix("http://").partition(":")
        service = self.processes.start(
            "services.rollout", engine="scripted", script_share="1.0", host=host, port=port, **settings
        )
        self.processes.until(lambda: _listens(host, int(port)), "the rollout service listens")
        return service

    def start_runner(self, node: str = "n") -> tuple[Service, str]:
        """A runner and its incarnation."""
        before = self.incarnations()
        service = self.processes.start("services.runner", rollout_url=self.rollout_url, node=node)
        self.processes.until(lambda: len(self.incarnations()) > len(before), "a runner joins")
        (incarnation,) = set(self.incarnations()) - set(before)
        return service, incarnation

    def incarnations(self) -> list[str]:
        return list(self.rows.column("SELECT incarnation FROM runners ORDER BY started_at"))

    def until_states(self, seeded: Seeded, *states: str) -> None:
        wanted = sorted(states)
        self.processes.until(
            lambda: sorted(self.rows.states(seeded)) == wanted, f"rollouts become {', '.join(wanted)}"
        )


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.fixture
def yard(rows: Rows, database_url: str, tmp_path: Path) -> Iterator[Yard]:
    objects = f"file://{tmp_path}/objects"
    with Processes(tmp_path, database_url=database_url, objects_url=objects) as processes:
        yield Yard(
            rows=rows,
            objects=open_store(objects),
            processes=processes,
            rollout_url=f"http://127.0.0.1:{free_port()}",
        )
