"""What the registry does by the hour: forgets answers that nobody will ask for again.

Guarantees: a failure is logged and tried again at the next hour; it never takes the API down.
Does not: touch anything but idempotency keys."""

import asyncio

from sqlalchemy.exc import SQLAlchemyError

from tiltyard.store import idempotency
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.events import event_logger

HOUR = 3_600.0
log = event_logger("registry")


async def keep_house(work: AsyncUnitOfWork, *, every: float = HOUR) -> None:
    """Forget old idempotency keys, now and every hour, until cancelled."""
    while True:
        try:
            gone = await work.run(idempotency.forget)
            log.info("registry.forgot", idempotency_keys=gone)
        except SQLAlchemyError as error:
            log.warning("registry.housekeeping_failed", error=str(error)[:500])
        await asyncio.sleep(every)
