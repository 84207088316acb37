"""One server as a child process that leaves nothing behind.

Guarantees: every process that descends from it, daemons included, is known by a mark in its environment or
by its folder, is killed at the end, and is looked for again after that. The folder is the log's.
Does not: know when the server is ready; `wait_until` asks."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MARK = "TILTYARD_SERVER_MARK"


class ServerFailed(Exception):
    """A server did not start, or did not end; the message holds the end of its log."""


class Daemon:
    """A server process and its descendants."""

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str], user: str | None = None
    ) -> None:
        self._command = list(command)
        self._log = log
        self._mark = secrets.token_hex(8)
        self._environment = {**environment, MARK: self._mark}
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self._command[0]} is not started")
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._log.parent,
                user=self._user,
                start_new_session=True,
            )

    def stop(self, *, within: float = 30.0) -> None:
        """End it politely, then by force; raise `ServerFailed` when a process survives that."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(within)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of it."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)
        wait_until(lambda: not self.pids(), f"the end of {self._command[0]}", within=10, log=self._log)

    def signal(self, number: signal.Signals) -> None:
        """One signal to every process of it (SIGSTOP freezes the server, SIGCONT thaws it)."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pids(self) -> list[int]:
        """Its living processes; zombies do not count."""
        return living(self._mark, self._log.parent.resolve())

    def wait_ready(self, ready: Callable[[], bool], *, within: float) -> None:
        """Wait until `ready()`; `ServerFailed` when the process ends or the time does."""
        process = self._process

        def ready_or_dead() -> bool:
            if process is not None and process.poll() is not None:
                raise ServerFailed(f"{self._command[0]} ended with {process.returncode}:\n{tail(self._log)}")
            return ready()

        wait_until(ready_or_dead, f"{self._command[0]} to be ready", within=within, log=self._log)


def living(mark: str, folder: Path) -> list[int]:
    """Processes that carry the mark, or work in the folder (Postgres writes over its environment)."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if _belongs(entry, mark, folder)]


def _belongs(process: Path, mark: str, folder: Path) -> bool:
    if not process.name.isdigit():
        return False
    with contextlib.suppress(OSError):  # gone, a zombie, or not ours to read
        if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
            return True
        return (process / "cwd").readlink().is_relative_to(folder)
    return False


def wait_until(ready: Callable[[], bool], what: str, *, within: float, log: Path | None = None) -> None:
    """Ask every 50 ms; `ServerFailed` after `within` seconds."""
    deadline = time.monotonic() + within
    while not ready():
        if time.monotonic() > deadline:
            end = f":\n{tail(log)}" if log else ""
            raise ServerFailed(f"waited {within} s in vain for {what}{end}")
        time.sleep(0.05)


def tail(log: Path, size: int = 4000) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-size:] if log.exists() else "(no log)"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def listening(port: int) -> bool:
    """Whether somebody accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
