"""A RabbitMQ broker of one's own, from Debian's package.

Guarantees: own node name, cookie, ports, port mapper and folder, so that any number run beside a system's.
Does not: run where `rabbitmq-server` is not installed; `rabbitmq_installed()` tells."""

import base64
import json
import os
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tiltyard.testing.servers.daemon import Daemon, free_ports

USER = "guest:guest"


def _programs() -> Path | None:
    """Folder of RabbitMQ's own scripts; the wrappers in /usr/sbin insist on the system's user."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    return found[-1] if found else None


def rabbitmq_installed() -> bool:
    """Whether this machine has RabbitMQ and Erlang."""
    return _programs() is not None and shutil.which("erl") is not None


class RabbitMQ:
    """A running broker."""

    def __init__(self, directory: Path) -> None:
        programs = _programs()
        if programs is None:
            raise FileNotFoundError("RabbitMQ is not installed: apt-get install rabbitmq-server")
        directory.mkdir(parents=True, exist_ok=True)
        self._programs = programs
        self._port, distribution, mapper, self._http = free_ports(4)
        self._environment = _environment(directory, self._port, distribution, mapper)
        _configure(directory, self._port, self._http)
        self.daemon = Daemon(
            [str(programs / "rabbitmq-server")], log=directory / "console.log", environment=self._environment
        )

    @property
    def url(self) -> str:
        """AMQP URL of the default virtual host."""
        return f"amqp://{USER}@127.0.0.1:{self._port}//"

    @property
    def pid(self) -> int:
        return self.daemon.pid

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_ready(self._healthy, within=90)

    def stop(self) -> None:
        self.daemon.stop()

    def kill(self) -> None:
        self.daemon.kill()

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl`; takes a second or two."""
        done = subprocess.run(
            [str(self._programs / "rabbitmqctl"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def virtual_host(self) -> str:
        """AMQP URL of a new, empty virtual host."""
        name = f"t{secrets.token_hex(6)}"
        self.api("PUT", f"/vhosts/{name}")
        self.api("PUT", f"/permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        return f"amqp://{USER}@127.0.0.1:{self._port}/{name}"

    def drop_virtual_host(self, url: str) -> None:
        """Remove a virtual host, its queues and its clients' connections."""
        self.api("DELETE", f"/vhosts/{url.rpartition('/')[2]}")

    def drop_connections(self) -> int:
        """Close every client's connection from the server's side; how many."""
        connections = self.api("GET", "/connections")
        for connection in connections:
            self.api("DELETE", f"/connections/{quote(connection['name'])}")
        return len(connections)

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Call the management API; its JSON, or None."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http}/api{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(USER.encode()).decode()}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def _healthy(self) -> bool:
        try:
            return self.api("GET", "/health/checks/virtual-hosts")["status"] == "ok"
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def start_rabbitmq(directory: Path) -> Iterator[RabbitMQ]:
    """A broker in `directory`, up within 8–15 s, and gone at the end."""
    server = RabbitMQ(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _environment(directory: Path, port: int, distribution: int, mapper: int) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return inherited | {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"tilt{secrets.token_hex(4)}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }


def _configure(directory: Path, port: int, http: int) -> None:
    (directory / "plugins").write_text("[rabbitmq_management].\n")
    (directory / "none.conf").touch()
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.local = 127.0.0.1:{port}\n"
        f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http}\n"
        "disk_free_limit.absolute = 50MB\nlog.console.level = warning\n"
    )
