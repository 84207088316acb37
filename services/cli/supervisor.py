"""Child processes that are kept alive.

Guarantees: a child that ends unasked is started again, with back-off; children die with this process, however
it dies; `stop` returns when every child is gone.
Does not: know what the children do."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
STEADY_SECONDS = 20.0
"""A child that lived this long begins its back-off anew."""
MOST_FAILURES = 8
"""Ends in a row after which a child is given up."""
TAIL_LINES = 15


class ChildFailed(RuntimeError):
    """A child would not start, or ended too often; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and how to know that it is ready and how to end it."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str]
    ready: Callable[[], bool] = lambda: True
    ready_seconds: float = 60.0
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10.0
    death_signal: str = "KILL"
    """What the kernel sends it when this process dies."""


@dataclass(kw_only=True)
class Child:
    """A program's running process."""

    program: Program
    process: subprocess.Popen[bytes]
    since: float
    failures: int = 0
    restarts: int = 0
    told_to_stop: bool = False
    again_at: float | None = None
    """When it is started again, after an end."""


@dataclass(kw_only=True)
class Supervisor:
    """Starts programs in order, keeps them alive, and stops them in reverse."""

    poll_seconds: float = 0.1
    children: dict[str, Child] = field(default_factory=dict, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _monitor: threading.Thread | None = field(default=None, init=False)

    def start(self, program: Program) -> None:
        """Start a program; it is supervised from now on."""
        with self._lock:
            self.children[program.name] = Child(
                program=program, process=_spawn(program), since=time.monotonic()
            )
            if self._monitor is None:
                self._monitor = threading.Thread(target=self._watch, name="supervisor", daemon=True)
                self._monitor.start()

    def await_ready(self, name: str) -> None:
        """Wait until the program says that it is ready; raises `ChildFailed`."""
        program = self.children[name].program
        deadline = time.monotonic() + program.ready_seconds
        while not program.ready():
            self.check()
            if self.children[name].restarts >= 3:
                raise ChildFailed(f"{name} ends again and again while starting:\n{tail(program.log)}")
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"{name} was not ready within {program.ready_seconds:.0f} s:\n{tail(program.log)}"
                )
            time.sleep(0.05)

    def check(self) -> None:
        """Raise `ChildFailed` when a child has been given up."""
        for name, child in list(self.children.items()):
            if child.failures >= MOST_FAILURES:
                raise ChildFailed(f"{name} ended {child.failures} times in a row:\n{tail(child.program.log)}")

    def _watch(self) -> None:
        while not self._ended.wait(self.poll_seconds):
            with self._lock:
                for child in self.children.values():
                    self._heal(child)

    def _heal(self, child: Child) -> None:
        now = time.monotonic()
        if self._stopping.is_set() or child.process.poll() is None or child.failures >= MOST_FAILURES:
            return
        if child.again_at is None:
            child.failures = 1 if now - child.since > STEADY_SECONDS else child.failures + 1
            child.again_at = now + min(LONGEST_WAIT, FIRST_WAIT * 2 ** (child.failures - 1))
        elif now >= child.again_at:
            child.process, child.since, child.again_at = _spawn(child.program), now, None
            child.restarts += 1

    def stop(self) -> None:
        """End every child; idempotent.

        All but the first, which the others lean on, are told at once; then each is waited for, last started
        first. The monitor ends last: children that it started again die with its thread."""
        self._stopping.set()
        with self._lock:
            children = list(self.children.values())
        for child in children[1:]:
            _tell(child)
        for child in reversed(children):
            _end(child)
        self._ended.set()
        if self._monitor is not None:
            self._monitor.join()


def _spawn(program: Program) -> subprocess.Popen[bytes]:
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("ab") as log:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", program.death_signal, *program.argv],
            env=dict(program.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _tell(child: Child) -> None:
    if child.process.poll() is None and not child.told_to_stop:
        child.told_to_stop = True
        child.process.send_signal(child.program.stop_signal)


def _end(child: Child) -> None:
    _tell(child)
    if child.process.poll() is None:
        try:
            child.process.wait(child.program.stop_seconds)
        except subprocess.TimeoutExpired:
            _kill_group(child.process.pid)
    child.process.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, and where the rest is."""
    if not log.exists():
        return f"(no log at {log})"
    text = log.read_bytes()[-20_000:].decode(errors="replace").splitlines()[-lines:]
    return "\n".join([*text, f"(all of it: {log})"])
