"""The leader's loop: reap → settle → plan → grant → preempt → announce, woken by hints or every 200 ms.

Guarantees: of many dispatchers one works; everything it knows is in rows, so a restart is a resume; after the
database was away, or a clock jumped, no silence is judged for a minute.
Does not: run rollouts or gradings."""

import asyncio
import time
from dataclasses import dataclass, field

from services.dispatcher.grant import announce_jobs, grant
from services.dispatcher.plan import plan_groups
from services.dispatcher.preempt import take_back
from services.dispatcher.reap import reap
from services.dispatcher.settle import finish_evaluation, settle_groups
from tiltyard.queue import Ear, Publisher
from tiltyard.store import fleet, leadership, runs
from tiltyard.store.batch import UNAVAILABLE
from tiltyard.store.database import UnitOfWork
from tiltyard.store.leadership import Leader, NotLeading
from tiltyard.telemetry.events import event_logger
from tiltyard.telemetry.metrics import Metrics

LOOP = fleet.DISPATCHER
POLL_SECONDS = 0.2
LOOK_BACK_SECONDS = 1.0
"""What was given is looked at this often: what ran out of time, and what has to yield."""
REST_SHARE, LONGEST_REST = 2.0, 0.1
"""A turn is followed by a rest twice its own length, in seconds at most: hints that arrive meanwhile are one
turn, and the loop takes a third of a core at most."""
LARGEST_CLOCK_STEP = 5.0
"""Seconds by which wall and monotonic clock may disagree between two turns."""
log = event_logger("dispatcher")


@dataclass(kw_only=True)
class Loop:
    """One dispatcher process."""

    work: UnitOfWork
    publisher: Publisher
    holder: str
    version: str = ""
    """Of Tiltyard; a runner of another is refused. Empty: any is welcome."""
    doubts_time: bool = True
    """Whether time has to be distrusted at the next chance."""
    metrics: Metrics = field(default_factory=Metrics)
    _looked_back_at: float = field(default=0.0, init=False)
    _clocks: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()), init=False)

    async def run(self, ear: Ear, stop: asyncio.Event) -> None:
        """Turn until `stop` is set; then let the next dispatcher lead at once."""
        while not stop.is_set():
            started = time.monotonic()
            busy = await asyncio.to_thread(self._turn_or_doubt)
            await asyncio.sleep(min(LONGEST_REST, REST_SHARE * (time.monotonic() - started)))
            if not busy:
                await ear.wait(POLL_SECONDS)
        await asyncio.to_thread(self._resign)

    def _turn_or_doubt(self) -> bool:
        try:
            return self.turn()
        except NotLeading as error:
            log.warning("dispatcher.deposed", reason=str(error))
        except UNAVAILABLE as error:
            self.doubts_time = True
            log.warning("dispatcher.database_away", reason=str(error))
            time.sleep(1.0)
        return False

    def turn(self) -> bool:
        """One turn; whether anything changed. Does nothing while another dispatcher leads."""
        leader = self._lead()
        if leader is None:
            return False
        changed = 0
        looks_back = time.monotonic() - self._looked_back_at >= LOOK_BACK_SECONDS
        if looks_back:
            self._looked_back_at = time.monotonic()
            changed += reap(self.work, leader)
        for run in self._living():
            changed += settle_groups(self.work, leader, run)
            changed += finish_evaluation(self.work, leader, run)
            changed += plan_groups(self.work, leader, run)
        changed += grant(self.work, leader, self.publisher)
        if looks_back:
            changed += self._take_back(leader)
        changed += announce_jobs(self.work, leader, self.publisher)
        return changed > 0

    def _take_back(self, leader: Leader) -> int:
        told = take_back(self.work, leader)
        self.metrics.counter("preemptions", "Rollouts that were told to yield to a higher class.").inc(told)
        return told

    def _living(self) -> list[runs.RunRow]:
        with self.work() as session:
            return runs.living(session, ("train", "evaluation"))

    def _lead(self) -> Leader | None:
        doubts = self.doubts_time or self._clock_jumped()
        with self.work() as session:
            leader = leadership.lead(session, LOOP, self.holder, version=self.version)
            if leader is not None and doubts:
                leader = leadership.distrust_time(session, leader)
        self.doubts_time = doubts and leader is None
        return leader

    def _clock_jumped(self) -> bool:
        before, self._clocks = self._clocks, (time.time(), time.monotonic())
        wall, steady = (b - a for a, b in zip(before, self._clocks, strict=True))
        return abs(wall - steady) > LARGEST_CLOCK_STEP

    def _resign(self) -> None:
        try:
            leader = self._lead()
            if leader is not None:
                with self.work() as session:
                    leadership.resign(session, leader)
        except UNAVAILABLE as error:
            log.warning("dispatcher.not_resigned", reason=str(error))
