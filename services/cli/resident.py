"""The process behind `tiltyard up`: holds a stack until it is told to stop.

Guarantees: what becomes of the start is told on stdout, as JSON lines, to whoever started it; afterwards
`STATE/status.json` tells the state; SIGTERM ends everything in order.
Does not: take part in any work."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from services.cli.stack import Options, PortInUse, Stack
from services.cli.state import StateError
from services.cli.status import ServiceStatus, Status, write_status
from services.cli.supervisor import ChildFailed

LOOK = 1.0
"""Seconds between two looks at the children."""
EXPECTED = (StateError, PortInUse, ChildFailed, PermissionError, ModuleNotFoundError)


def tell(**event: str) -> None:
    """One line for the starter."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def hold(options: Options) -> int:
    """Start the stack, hold it until a signal comes, and stop it; the exit code."""
    told_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _interrupt(told_to_stop))
    stack, started_at = Stack(options=options), time.time()
    try:
        stack.start(lambda words: tell(say=words))
    except EXPECTED as error:
        tell(error=str(error))
        return 1
    except _Interrupted:
        tell(error="stopped while starting")
        return 1
    try:
        write_status(options.state, snapshot(stack, "ready", started_at))
        tell(ready=stack.url)
        _quiet(stack.state.logs / "up.log")
        return _watch(stack, told_to_stop, started_at)
    except _Interrupted:
        return 0
    finally:
        told_to_stop.set()  # a signal that comes while stopping changes nothing
        stack.stop()


class _Interrupted(BaseException):
    """A signal came."""


def _interrupt(told_to_stop: threading.Event) -> None:
    if not told_to_stop.is_set():
        told_to_stop.set()
        raise _Interrupted


def _watch(stack: Stack, told_to_stop: threading.Event, started_at: float) -> int:
    folder = stack.options.state
    try:
        while True:
            stack.supervisor.check()
            write_status(folder, snapshot(stack, "ready", started_at))
            told_to_stop.wait(LOOK)
    except _Interrupted:
        write_status(folder, snapshot(stack, "stopping", started_at))
        return 0
    except ChildFailed as error:
        write_status(folder, snapshot(stack, "failed", started_at, error=str(error)))
        return 1


def snapshot(stack: Stack, state: str, started_at: float, *, error: str = "") -> Status:
    """The stack as it is now."""
    services = {
        name: ServiceStatus(
            pid=child.process.pid if child.process.poll() is None else None,
            ready=child.process.poll() is None,
            restarts=child.restarts,
        )
        for name, child in stack.supervisor.children.items()
    }
    return Status(
        state=state,
        supervisor=os.getpid(),
        url=stack.url,
        started_at=started_at,
        database_url=stack.database_url,
        error=error,
        services=services,
    )


def _quiet(log: Path) -> None:
    """Stop talking to the starter, which goes away now."""
    sys.stdout.flush()
    with log.open("ab") as file, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def parse_options(state: Path, given: str) -> Options:
    """Options as `lifecycle.up` wrote them."""
    return Options(state=state, **json.loads(given))


if __name__ == "__main__":
    sys.exit(hold(parse_options(Path(sys.argv[1]), sys.argv[2])))
