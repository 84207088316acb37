"""Services as child processes, for tests that kill them.

Guarantees: whatever was started is gone when the block ends, and its log is shown when a wait fails.
Does not: choose settings; the test does."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

WAIT_SECONDS = 90.0


class Service:
    """One running service."""

    def __init__(self, module: str, log: Path, env: dict[str, str]) -> None:
        self.module, self._log = module, log
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TILTYARD_")}
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module], env=inherited | env, stderr=sink, stdout=sink
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self, seconds: float = 30.0) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


class Processes:
    """The services that a test started."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = {f"TILTYARD_{name.upper()}": value for name, value in settings.items()}
        self._started: list[Service] = []

    def start(self, module: str, **settings: str) -> Service:
        """`python -m module` with these `TILTYARD_` settings and those of all."""
        own = {f"TILTYARD_{name.upper()}": value for name, value in settings.items()}
        log = self._folder / f"{len(self._started)}-{module}.log"
        service = Service(module, log, {**self._settings, **own})
        self._started.append(service)
        return service

    def until(self, condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait; AssertionError with the services' logs when it takes too long."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {s.module}\n{s.log[-4_000:]}" for s in self._started)
                raise AssertionError(f"waited {seconds:g} s in vain: {what}\n{logs}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for service in self._started:
            if service.process.poll() is None:
                service.kill()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
