"""The whole platform on one machine: Postgres and the six services as child processes.

Guarantees: services start through their own entry points with `TILTYARD_…` settings alone, a dead one is
started again, and nothing is left running after `stop`, or after this process's death.
Does not: start a broker or an S3 server; it uses those that it is given."""

import importlib.util
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.cli import postgres
from services.cli.state import StateDirectory
from services.cli.supervisor import Program, Supervisor

SHARED_CORES = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of torch sleep at their barriers instead of spinning: here two torch processes, sandboxes and a
database share the cores. Two warm starts side by side on two busy cores took 26 s instead of 122 s."""

SERVICES = ("registry", "dispatcher", "rollout", "trainer", "evaluator", "runner")
"""In the order of their start."""


class PortInUse(RuntimeError):
    """Another program listens where the registry should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person may choose about a stack."""

    state: Path
    port: int = 8080
    broker: str = ""
    """`amqp://…`; empty: hints travel by Postgres NOTIFY."""
    objects: str = ""
    """`s3://…`; empty: a directory below the state directory."""
    engine: str = "transformers"
    """`transformers`, or `scripted` for benches."""
    slots: int = 256
    """Rollouts aboard the runner at once."""
    sandboxes: int = 8
    """Sandboxes of the evaluator at once; the runner lends as many."""
    lend_port: int | None = None
    """Where the runner lends sandboxes; None: it lends none."""
    network_allow: str = ""
    """Hosts that tasks, and borrowers of sandboxes, may ask for, comma-separated; empty: none."""
    network_private: str = ""
    """Ranges of private addresses that these may lead to."""
    otlp_endpoint: str = ""
    services: tuple[str, ...] = SERVICES
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further `TILTYARD_…` settings for every service."""


@dataclass(kw_only=True)
class Stack:
    """A stack that may be started and stopped once."""

    options: Options
    supervisor: Supervisor = field(default_factory=Supervisor, init=False)
    state: StateDirectory = field(init=False)
    database_url: str = field(default="", init=False)
    token: str = field(default="", init=False)
    rollout_port: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.state = StateDirectory(path=self.options.state)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.options.port}"

    @property
    def objects_url(self) -> str:
        return self.options.objects or f"file://{self.state.objects}"

    def start(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start everything and wait until it is ready.

        Raises `StateError`, `PortInUse`, or `ChildFailed` with the end of the service's log."""
        self.state.claim()
        try:
            refuse_used_port(self.options.port)
            self.token = self.state.token()
            self.rollout_port = free_port()
            self._start_postgres(say)
            for name in self.options.services:
                self.supervisor.start(self._program(name))
            for name in self.options.services:
                say(f"waiting for {name}")
                self.supervisor.await_ready(name)
        except BaseException:
            self.stop()
            raise

    def _start_postgres(self, say: Callable[[str], None]) -> None:
        say("starting postgres")
        server, self.database_url = postgres.program(self.state.path, log=self.state.logs / "postgres.log")
        self.supervisor.start(server)
        self.supervisor.await_ready("postgres")
        migrate(self.database_url)

    def stop(self) -> None:
        """End everything; idempotent."""
        self.supervisor.stop()
        self.state.free()

    def pid(self, service: str) -> int:
        return self.supervisor.children[service].process.pid

    def _program(self, name: str) -> Program:
        return Program(
            name=name,
            argv=[sys.executable, "-m", f"services.{name}"],
            log=self.state.logs / f"{name}.log",
            env={**SHARED_CORES, **_foreign_environment(), **self._settings(), **self._settings_of(name)},
            ready=self._ready(name),
            ready_seconds=120,
        )

    def _settings(self) -> dict[str, str]:
        return {
            "TILTYARD_STATE_DIR": str(self.state.path),
            "TILTYARD_DATABASE_URL": self.database_url,
            "TILTYARD_BROKER_URL": self.options.broker,
            "TILTYARD_OBJECTS_URL": self.objects_url,
            "TILTYARD_OTLP_ENDPOINT": self.options.otlp_endpoint,
            "TILTYARD_NETWORK_ALLOW": self.options.network_allow,
            "TILTYARD_NETWORK_PRIVATE": self.options.network_private,
            "TILTYARD_CACHE_DIR": str(self.state.path / "cache"),
            **self.options.extra,
        }

    def _settings_of(self, name: str) -> dict[str, str]:
        return {
            "registry": {
                "TILTYARD_HOST": "127.0.0.1",
                "TILTYARD_PORT": str(self.options.port),
                "TILTYARD_TOKEN_FILE": str(self.state.token_file),
            },
            "rollout": {
                "TILTYARD_HOST": "127.0.0.1",
                "TILTYARD_PORT": str(self.rollout_port),
                "TILTYARD_ENGINE": self.options.engine,
            },
            "runner": {
                "TILTYARD_ROLLOUT_URL": f"http://127.0.0.1:{self.rollout_port}",
                "TILTYARD_SLOTS": str(self.options.slots),
                "TILTYARD_NODE": "local",
                **self._lending(),
            },
            "evaluator": {"TILTYARD_SANDBOXES": str(self.options.sandboxes)},
        }.get(name, {})

    def _lending(self) -> dict[str, str]:
        if self.options.lend_port is None:
            return {}
        return {
            "TILTYARD_SANDBOX_PORT": str(self.options.lend_port),
            "TILTYARD_SANDBOXES": str(self.options.sandboxes),
            "TILTYARD_TOKEN_FILE": str(self.state.token_file),
        }

    def _ready(self, name: str) -> Callable[[], bool]:
        if name == "registry":
            return lambda: answers(f"{self.url}/readyz")
        if name == "rollout":
            return lambda: answers(f"http://127.0.0.1:{self.rollout_port}/readyz")
        if name == "runner" and self.options.lend_port is not None:
            return lambda: answers(f"http://127.0.0.1:{self.options.lend_port}/readyz")
        return lambda: True


@contextmanager
def running(options: Options, say: Callable[[str], None] = lambda _: None) -> Iterator[Stack]:
    """A started stack that is stopped at the end."""
    stack = Stack(options=options)
    stack.start(say)
    try:
        yield stack
    finally:
        stack.stop()


def migrate(database_url: str) -> None:
    """Bring the schema to its newest version."""
    from alembic import command
    from alembic.config import Config

    spec = importlib.util.find_spec("migrations")
    if spec is None or spec.origin is None:
        raise RuntimeError("the migrations are not installed; install the package again")
    config = Config()
    config.set_main_option("script_location", str(Path(spec.origin).parent))
    config.attributes["url"] = database_url
    command.upgrade(config, "head")


def refuse_used_port(port: int) -> None:
    """Raise `PortInUse` if something listens on the loopback port."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUse(
                f"port {port} on 127.0.0.1 is in use; stop what listens there, or choose another with --port"
            ) from error


def free_port() -> int:
    """A loopback port that nothing listens on at the moment."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a GET gives 200 within two seconds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _foreign_environment() -> dict[str, str]:
    """Our environment without `TILTYARD_…`: a stack's settings are its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith("TILTYARD_")}
