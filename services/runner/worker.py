"""The runner: one incarnation after another, until it is told to stop.

Guarantees: an incarnation that was given up dies whole before the next one joins; a database that is away is
waited for.
Does not: remember anything between incarnations: the rows do."""

import asyncio

from services.runner.incarnation import RETRY_SECONDS, Incarnation, Parts
from tiltyard.store.batch import UNAVAILABLE
from tiltyard.telemetry.events import event_logger

log = event_logger("runner")


async def run(parts: Parts, stop: asyncio.Event) -> None:
    """Host episodes until `stop` is set."""
    while not stop.is_set():
        try:
            await Incarnation(parts).live(stop)
        except UNAVAILABLE as error:
            log.warning("runner.database_away", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
