"""The runner's sign of life, and what silence means.

Guarantees: it beats on a connection and a task of its own, so that no work delays it; after `QUIET_SECONDS`
without the database nothing may act on the outside (`may_act` is clear); after `DEAD_SECONDS`, or when a beat
touches no row, `lost` is set and whatever is aboard must die.
Does not: kill anything; the worker does. Time asleep counts: the clock is the one since boot."""

import asyncio
import time
from collections.abc import Callable

from tiltyard.contracts.http import NodeHealth
from tiltyard.core.fleet import HEARTBEAT_EVERY
from tiltyard.store import fleet
from tiltyard.store.batch import UNAVAILABLE
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.store.fleet import Orders
from tiltyard.telemetry.events import event_logger

log = event_logger("runner")
QUIET_SECONDS = 30.0
DEAD_SECONDS = 300.0
BEAT_TIMEOUT = 10.0


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Heartbeat:
    """The pulse of one incarnation."""

    def __init__(
        self,
        work: AsyncUnitOfWork,
        incarnation: str,
        obey: Callable[[Orders], None],
        *,
        health: Callable[[], NodeHealth | None] = lambda: None,
        clock: Callable[[], float] = since_boot,
        every: float = HEARTBEAT_EVERY.total_seconds(),
    ) -> None:
        self._work, self._incarnation, self._obey = work, incarnation, obey
        self._health, self._clock, self._every = health, clock, every
        self._heard = clock()
        self.may_act = asyncio.Event()
        self.may_act.set()
        self.lost = asyncio.Event()

    async def beat_until_lost(self) -> None:
        """Beat; returns once `lost` is set."""
        while not self.lost.is_set():
            await asyncio.sleep(self._every)
            await self.beat()

    async def beat(self) -> None:
        """One beat, and what follows from it."""
        try:
            async with asyncio.timeout(BEAT_TIMEOUT):
                orders = await self._work.run(fleet.heartbeat, self._incarnation, self._health())
        except (*UNAVAILABLE, TimeoutError) as error:
            self._judge_silence(error)
            return
        if orders is None:
            log.warning("runner.given_up", incarnation=self._incarnation)
            self._lose()
            return
        self._heard = self._clock()
        self.may_act.set()
        self._obey(orders)

    def _judge_silence(self, error: BaseException) -> None:
        silent = self._clock() - self._heard
        log.warning("heartbeat.missed", silent_seconds=round(silent, 1), error=str(error))
        if silent >= DEAD_SECONDS:
            self._lose()
        elif silent >= QUIET_SECONDS:
            self.may_act.clear()

    def _lose(self) -> None:
        self.may_act.clear()
        self.lost.set()
