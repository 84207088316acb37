"""The trainer's loop: hold the oldest run that nobody holds, and work on it to its end.

Guarantees: a run that cannot go on by its own fault ends FAILED with the reason; anything else lets the lease
run out, and the next holder resumes.
Does not: work on two runs at once."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError

from services.trainer.checkpoint import Checkpoints
from services.trainer.held import Held, Stopped, holding
from services.trainer.rl import Training
from services.trainer.sft import NoPolicy, run_sft
from services.trainer.step import NotFinite
from services.trainer.warmstart import BadDataset
from tiltyard.contracts.run_config import SftRun, TrainRun
from tiltyard.objects import ObjectCorrupt, ObjectMissing, ObjectStoreUnavailable
from tiltyard.queue import Publisher
from tiltyard.store import training
from tiltyard.store.database import UnitOfWork
from tiltyard.store.runs import RunRow
from tiltyard.store.training import LostRun
from tiltyard.telemetry.events import event_logger
from tiltyard.telemetry.span import SpanRecord

IDLE_SECONDS = 0.5
AWAY_SECONDS = 2.0
OWN_FAULTS = (BadDataset, NoPolicy, NotFinite, ObjectMissing, ObjectCorrupt)
log = event_logger("trainer")


@dataclass(kw_only=True)
class Trainer:
    """One trainer process."""

    work: UnitOfWork
    checkpoints: Checkpoints
    publisher: Publisher
    take_spans: Callable[[str], list[SpanRecord]]
    """Finished spans of a trace."""
    holder: str
    stop: threading.Event

    def serve(self) -> None:
        """Work until `stop` is set."""
        while not self.stop.is_set():
            try:
                if not self._turn():
                    self.stop.wait(IDLE_SECONDS)
            except (OperationalError, ObjectStoreUnavailable) as error:
                log.warning("trainer.dependency_away", reason=str(error))
                self.stop.wait(AWAY_SECONDS)

    def _turn(self) -> bool:
        with self.work() as session:
            run = training.lease(session, self.holder)
        if run is None:
            return False
        log.info("trainer.holds", run_id=run.id, name=run.name, fence=run.fence)
        with holding(self.work, run.id, run.fence, self.stop) as held:
            self._work_on(run, held)
        return True

    def _work_on(self, run: RunRow, held: Held) -> None:
        try:
            if isinstance(run.config, SftRun):
                run_sft(self.work, self.checkpoints, run, run.config, held)
            elif isinstance(run.config, TrainRun):
                self._training(run, run.config, held).go()
        except LostRun as error:
            log.warning("trainer.lost_run", run_id=run.id, reason=str(error))
        except Stopped:
            with self.work() as session:
                training.release(session, run.id, held.fence)
        except OWN_FAULTS as error:
            log.error("trainer.gave_up", run_id=run.id, reason=str(error))
            with self.work() as session:
                training.give_up(session, run.id, held.fence, f"{type(error).__name__}: {error}")

    def _training(self, run: RunRow, config: TrainRun, held: Held) -> Training:
        return Training(
            work=self.work,
            checkpoints=self.checkpoints,
            publisher=self.publisher,
            take_spans=self.take_spans,
            run=run,
            config=config,
            held=held,
        )
