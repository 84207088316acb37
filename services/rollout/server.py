"""The service's life: what starts, in which order, and how it ends.

Guarantees: after SIGTERM requests under way get `GRACE_SECONDS`, then the process ends.
Does not: read settings from the environment."""

import asyncio
import contextlib
import signal

import uvicorn

from services.rollout.app import create_app
from services.rollout.completions import Ports
from services.rollout.gauges import Gauges
from services.rollout.opening import open_engine
from services.rollout.settings import RolloutSettings
from services.rollout.versions import Versions
from tiltyard.contracts.messages import POLICY
from tiltyard.queue import open_listener
from tiltyard.store import tenants
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.garbage import look_seldom
from tiltyard.telemetry.setup import Telemetry

GRACE_SECONDS = 4


async def serve(settings: RolloutSettings, telemetry: Telemetry) -> None:
    """Serve until SIGTERM."""
    gauges = Gauges(telemetry.metrics)
    engine, load = open_engine(settings, gauges)
    work = AsyncUnitOfWork(settings.database_url, application="tiltyard-rollout", connections=4)
    versions = Versions(work, load, tenant=tenants.DEFAULT, keep=settings.loaded_versions)
    ports = Ports(versions=versions, engine=engine, gauges=gauges, recorder=telemetry.recorder)
    look_seldom()
    try:
        async with open_listener(settings.broker_url, settings.database_url, [POLICY]) as ear:
            following = asyncio.create_task(versions.follow(ear))
            try:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn catches it, and raises it again
                await uvicorn.Server(_config(settings, ports)).serve()
            finally:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
    finally:
        versions.close()
        engine.close()
        await work.close()


def _config(settings: RolloutSettings, ports: Ports) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(ports),
        settings.host,
        settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=75,
        backlog=4_096,
    )
