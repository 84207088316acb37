"""`python -m services.registry`: the HTTP API and the web console."""

import asyncio
import signal

import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from services.registry import settings as own
from services.registry.app import create_app
from services.registry.gauges import Gauges
from services.registry.housekeeping import keep_house
from services.registry.ports import Ports
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.objects import ObjectError, open_store
from tiltyard.queue import open_publisher
from tiltyard.store import tenants
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.setup import setup
from tiltyard.web.token import BadToken, read_token


async def serve(settings: own.RegistrySettings, token: str) -> None:
    """Serve until SIGTERM."""
    telemetry = setup("registry", otlp_endpoint=settings.otlp_endpoint)
    work = AsyncUnitOfWork(settings.database_url, application="tiltyard-registry")
    objects = open_store(settings.objects_url)
    publisher = open_publisher(settings.broker_url, settings.database_url)
    ports = Ports(
        work=work,
        objects=objects,
        publisher=publisher,
        tenant=tenants.DEFAULT,
        token=token,
        max_artifact_bytes=settings.max_artifact_bytes,
    )
    gauges = Gauges(telemetry.metrics)
    app = create_app(ports, gauges, hosts=settings.allowed_hosts, body_limit=settings.max_body_bytes)
    config = uvicorn.Config(app, settings.host, settings.port, log_config=None, access_log=False)
    try:
        await asyncio.to_thread(objects.prepare)
        await work.run(tenants.ensure)
        house = asyncio.create_task(keep_house(work))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn catches it, and raises it again
        await uvicorn.Server(config).serve()
        house.cancel()
    finally:
        await asyncio.to_thread(publisher.close)
        await work.close()
        telemetry.shutdown()


def main() -> None:
    try:
        settings = own.read()
        asyncio.run(serve(settings, read_token(settings.token_file)))
    except (InvalidSettings, BadToken, ObjectError, SQLAlchemyError) as error:
        raise SystemExit(f"tiltyard registry: {str(error).splitlines()[0]}") from None


if __name__ == "__main__":
    main()
