"""A run that this process holds: its lease is renewed beside the computing.

Guarantees: `check` raises as soon as a renewal has found that the run is somebody else's, or has ended.
Does not: interrupt a tensor operation."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

from tiltyard.store import training
from tiltyard.store.database import UnitOfWork
from tiltyard.store.training import LostRun
from tiltyard.telemetry.events import event_logger

RENEW_SECONDS = 5.0
log = event_logger("trainer")


class Stopped(Exception):
    """This process was asked to stop; the run goes on elsewhere."""


class Held:
    """One run under one fence."""

    def __init__(self, run_id: str, fence: int, stop: threading.Event) -> None:
        self.run_id, self.fence = run_id, fence
        self._stop, self._lost = stop, threading.Event()

    def check(self) -> None:
        """Raise `LostRun` or `Stopped`."""
        if self._lost.is_set():
            raise LostRun(f"run {self.run_id} is no longer held under fence {self.fence}")
        if self._stop.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Wait, unless asked to stop; raises like `check`."""
        self._stop.wait(seconds)
        self.check()

    def renew(self, work: UnitOfWork, done: threading.Event) -> None:
        """Renew until `done`; a database that is away is asked again."""
        while not done.wait(RENEW_SECONDS):
            try:
                with work() as session:
                    training.renew(session, self.run_id, self.fence)
            except LostRun:
                self._lost.set()
                return
            except OperationalError as error:
                log.warning("trainer.database_away", reason=str(error.orig))


@contextmanager
def holding(work: UnitOfWork, run_id: str, fence: int, stop: threading.Event) -> Iterator[Held]:
    """Renew the lease on a run while the block runs."""
    held, done = Held(run_id, fence, stop), threading.Event()
    thread = threading.Thread(target=held.renew, args=(work, done), name="lease", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        done.set()
        thread.join()
