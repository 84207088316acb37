"""A runner on another machine: it reaches Postgres, RabbitMQ and S3 through a network that can be cut.

Guarantees: real sockets; while it is there, everything is granted to it.
Does not: cut the way to the rollout service."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.chaos.arena import HUNG, Arena
from tests.e2e.scenario import wait_until
from tiltyard.testing.processes import Processes, Service
from tiltyard.testing.proxy import Proxy, proxied

NODE = "far"
SLOTS = "64"
LOCAL = "local"
"""The stack's own runner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """The runner, and the ways that lead from it."""

    arena: Arena
    database: Proxy
    broker: Proxy
    objects: Proxy
    process: Service

    def incarnations(self) -> list[str]:
        rows = self.arena.rows("SELECT incarnation FROM runners WHERE node = %s AND alive", NODE)
        return [incarnation for (incarnation,) in rows]

    def aboard(self) -> int:
        """Rollouts that run on it."""
        running = "SELECT count(*) FROM rollouts WHERE state = 'RUNNING' AND incarnation = ANY(%s)"
        return self.arena.value(running, self.incarnations())

    def until_aboard(self) -> None:
        """Wait until it has a rollout aboard."""
        wait_until(lambda: self.aboard() > 0, seconds=HUNG, what="a rollout far away")


@contextmanager
def far_runner(arena: Arena, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Far]:
    """A far runner in place of the stack's own; `environment` is its alone."""
    socket = Path(str(conninfo_to_dict(arena.stack.database_url)["host"])) / ".s.PGSQL.5432"
    broker_port = urlsplit(arena.rabbitmq.url).port
    assert broker_port is not None
    with (
        proxied(socket) as database,
        proxied(broker_port) as broker,
        proxied(arena.s3.port) as objects,
        Processes(folder, state_dir=str(arena.stack.state.path)) as processes,
    ):
        with pytest.MonkeyPatch.context() as patched:
            for name, value in (environment or {}).items():
                patched.setenv(name, value)
            process = processes.start(
                "services.runner",
                node=NODE,
                slots=SLOTS,
                database_url=f"postgresql://postgres@127.0.0.1:{database.port}/postgres",
                broker_url=arena.rabbitmq.url.replace(str(broker_port), str(broker.port)),
                objects_url=arena.stack.objects_url.replace(str(arena.s3.port), str(objects.port)),
                rollout_url=f"http://127.0.0.1:{arena.stack.rollout_port}",
            )
        far = Far(arena=arena, database=database, broker=broker, objects=objects, process=process)
        processes.until(lambda: bool(far.incarnations()), "the far runner to join")
        arena.client.drain(LOCAL)
        try:
            yield far
            for way in (database, broker, objects):
                way.pass_on()
            process.terminate()
        finally:
            arena.client.drain(LOCAL, draining=False)
