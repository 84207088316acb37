"""What a runner is made of.

Guarantees: everything that is opened here is closed here, whatever ends it.
Does not: join the fleet; `worker` does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from services.runner.attempt import UPLOADS
from services.runner.incarnation import Parts
from services.runner.lending.health import Nurse
from services.runner.metrics import Metrics
from services.runner.settings import RunnerSettings
from tiltyard.objects import open_store
from tiltyard.objects.crew import Crew
from tiltyard.queue import open_publisher
from tiltyard.sandbox import WarmPool
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.setup import Telemetry


@asynccontextmanager
async def parts(
    settings: RunnerSettings, telemetry: Telemetry, pool: WarmPool | None
) -> AsyncIterator[Parts]:
    """The adapters of one process. `pool`: the sandboxes that it lends."""
    metrics = Metrics(telemetry.metrics)
    work = AsyncUnitOfWork(settings.database_url, application="tiltyard-runner", connections=4)
    pulse = AsyncUnitOfWork(settings.database_url, application="tiltyard-runner-heartbeat", connections=1)
    # No total timeout: an episode bounds its own time. As many connections as episodes may be under way.
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=settings.slots),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
    )
    with (
        open_publisher(settings.broker_url, settings.database_url) as publisher,
        Crew(UPLOADS, name="upload") as uploads,
    ):
        try:
            yield Parts(
                settings=settings,
                work=work,
                pulse=pulse,
                objects=open_store(settings.objects_url),
                publisher=publisher,
                recorder=telemetry.recorder,
                metrics=metrics,
                session=session,
                uploads=uploads,
                health=Nurse(pool, metrics),
            )
        finally:
            await session.close()
            await pulse.close()
            await work.close()
