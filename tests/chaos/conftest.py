"""One stack under fire for all faults: real Postgres, RabbitMQ and S3, with a proxy before the S3 server.

Guarantees: the table of which fault led to what is printed at the end of the session; nothing of the stack
is left on the host.
Does not: start a stack for tests that bring their own."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.cli.demo.footprint import Footprint, footprint
from services.cli.stack import running
from tests.chaos.arena import ROWS, Arena
from tests.e2e.scenario import options, submit
from tiltyard.client import Client
from tiltyard.testing.proxy import proxied
from tiltyard.testing.servers import S3Server, rabbitmq_installed, start_rabbitmq, start_s3

TASKS = 12
GONE_WITHIN = 60.0
LATENCY_MS = "150"
"""Of the scripted engine: long enough that a fault finds rollouts aboard."""


@pytest.fixture(scope="session")
def arena() -> Iterator[Arena]:
    if not rabbitmq_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
    with tempfile.TemporaryDirectory(prefix="tiltyard-chaos-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        before = footprint(directory / "state")
        with pytest.MonkeyPatch.context() as environment, start_s3(directory / "s3") as s3:
            for name, value in S3Server.credentials().items():
                environment.setenv(name, value)
            yield from _under_fire(directory, s3)
        _nothing_left(directory / "state", before)


def _nothing_left(state: Path, before: Footprint) -> None:
    """Cgroups and namespaces are the whole host's: those of other programs' sandboxes come and go."""
    deadline = time.monotonic() + GONE_WITHIN
    while left := footprint(state).beyond(before):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.5)


def _under_fire(directory: Path, s3: S3Server) -> Iterator[Arena]:
    port = urlsplit(s3.endpoint).port
    assert port is not None
    with proxied(port) as proxy, start_rabbitmq(directory / "rabbitmq") as rabbitmq:
        chosen = options(
            directory / "state",
            broker=rabbitmq.url,
            objects=s3.place().replace(str(port), str(proxy.port)),
            extra={"TILTYARD_SCRIPT_LATENCY_MS": LATENCY_MS},
        )
        with running(chosen) as stack, Client(stack.url, stack.token) as client:
            submit(client, TASKS)
            yield Arena(stack=stack, client=client, rabbitmq=rabbitmq, s3=proxy)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which fault led to what."""
    if not ROWS:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(
        f"{'fault':<44}{'rollouts':>9}{'fenced':>8}{'again':>7}{'dead':>6}{'seconds':>9}"
    )
    for row in ROWS:
        terminalreporter.write_line(
            f"{row.fault:<44}{row.rollouts:>9}{row.fenced:>8}{row.again:>7}{row.dead:>6}{row.seconds:>9.1f}"
            + (f"  {row.note}" if row.note else "")
        )
