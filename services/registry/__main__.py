"""`python -m services.registry`: the HTTP API and the web console."""

import asyncio

import uvicorn

from services.registry import settings as own
from services.registry.app import create_app
from services.registry.gauges import Gauges
from services.registry.ports import Ports
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.objects import open_store
from tiltyard.queue import open_publisher
from tiltyard.store import tenants
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.setup import setup


async def serve(settings: own.RegistrySettings, token: str) -> None:
    """Serve until SIGTERM."""
    telemetry = setup("registry", otlp_endpoint=settings.otlp_endpoint)
    work, objects = (
        AsyncUnitOfWork(settings.database_url, application="registry"),
        open_store(settings.objects_url),
    )
    publisher = open_publisher(settings.broker_url, settings.database_url)
    ports = Ports(
        work=work,
        objects=objects,
        publisher=publisher,
        tenant=tenants.DEFAULT,
        token=token,
        max_artifact_bytes=settings.max_artifact_bytes,
    )
    app = create_app(
        ports, Gauges(telemetry.metrics), hosts=settings.allowed_hosts, body_limit=settings.max_body_bytes
    )
    config = uvicorn.Config(
        app, settings.host, settings.port, log_config=None, access_log=False, server_header=False
    )
    try:
        await asyncio.to_thread(objects.prepare)
        await work.run(tenants.ensure)
        await uvicorn.Server(config).serve()
    finally:
        await asyncio.to_thread(publisher.close)
        await work.close()
        telemetry.shutdown()


def main() -> None:
    try:
        settings = own.read()
        token = own.read_token(settings.token_file)
    except (InvalidSettings, own.BadToken) as error:
        raise SystemExit(f"tiltyard registry: {error}") from None
    asyncio.run(serve(settings, token))


if __name__ == "__main__":
    main()
