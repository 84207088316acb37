"""`python -m services.dispatcher`: the composition root."""

import asyncio
import signal
from importlib.metadata import version

from services.dispatcher.loop import Loop
from services.dispatcher.settings import DispatcherSettings, read
from tiltyard.contracts.messages import DISPATCH
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.queue import open_listener, open_publisher
from tiltyard.store.database import UnitOfWork, new_id
from tiltyard.telemetry.setup import setup


async def serve(settings: DispatcherSettings) -> None:
    telemetry = setup("dispatcher", settings.otlp_endpoint, log_level=settings.log_level)
    if settings.metrics_port:
        telemetry.metrics.serve(settings.metrics_port)
    work = UnitOfWork(settings.database_url, application="tiltyard-dispatcher", connections=2)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with open_publisher(settings.broker_url, settings.database_url) as publisher:
        async with open_listener(settings.broker_url, settings.database_url, [DISPATCH]) as ear:
            holder = f"dispatcher-{new_id()}"
            loop = Loop(
                work=work,
                publisher=publisher,
                holder=holder,
                version=version("tiltyard"),
                metrics=telemetry.metrics,
            )
            await loop.run(ear, stop)
    work.close()
    telemetry.shutdown()


def main() -> None:
    try:
        settings = read()
    except InvalidSettings as error:
        raise SystemExit(f"tiltyard dispatcher: {error}") from None
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
