"""What lies outside of gradings' sandboxes: two real servers on this machine's loopback, one of which a task
may name."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tiltyard.contracts.network import NetworkAccess, NetworkShape
from tiltyard.contracts.task_spec import Environment, Resources, TaskSpec
from tiltyard.sandbox.network import Permission
from tiltyard.testing.rows import addition

OPEN, SHUT = "127.0.0.9", "127.0.0.8"
METADATA = "169.254.169.254:80"
NET = """
import urllib.request
def get(address):
    try:
        return int(urllib.request.urlopen(f"http://{address}/", timeout=10).read())
    except OSError:
        return 0
"""
"""Given to every answer: the number that a host says, 0 without an answer."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Says 1."""
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"1")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Outside:
    """Both servers, while the block runs."""

    def __enter__(self) -> Self:
        self._servers = [ThreadingHTTPServer((host, 0), _Handler) for host in (OPEN, SHUT)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        self.open, self.shut = (f"{s.server_address[0]}:{s.server_address[1]}" for s in self._servers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def permission(self, *hosts: str) -> dict[str, str]:
        """The settings of an evaluator whose tasks may ask for these."""
        return {"network_allow": ",".join(hosts), "network_private": f"{OPEN}/32"}

    def granted(self, *hosts: str) -> Permission:
        return Permission.parse(hosts, [f"{OPEN}/32"])

    def task(self, *hosts: str, shape: NetworkShape | None = None) -> TaskSpec:
        """`f(x)` must be x+1, and may ask these hosts."""
        network = NetworkAccess(allow=hosts, shape=shape or NetworkShape()) if hosts else "none"
        return addition(
            environment=Environment(
                files={"net.py": NET},
                resources=Resources(memory_mb=128, pids=16, disk_mb=16),
                network=network,
            ),
            interface={"prefix": "import net\ndef f(x):\n    ", "stop": ["\n"]},
        )
