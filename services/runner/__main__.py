"""`python -m services.runner`: the composition root."""

import asyncio
import signal

from services.runner.app import parts
from services.runner.lending.server import PortInUse, lending
from services.runner.settings import RunnerSettings, read
from services.runner.worker import run
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.sandbox import SandboxUnavailable
from tiltyard.store.fleet import OtherVersion
from tiltyard.telemetry.garbage import look_seldom
from tiltyard.telemetry.setup import setup
from tiltyard.web.token import BadToken


async def serve(settings: RunnerSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    telemetry = setup("runner", settings.otlp_endpoint, log_level=settings.log_level)
    if settings.metrics_port:
        telemetry.metrics.serve(settings.metrics_port)
    async with lending(settings) as pool, parts(settings, telemetry, pool) as made:
        look_seldom()
        await run(made, stop)
    telemetry.shutdown()


def main() -> None:
    try:
        asyncio.run(serve(read()))
    except (InvalidSettings, BadToken, SandboxUnavailable, PortInUse, OtherVersion) as error:
        raise SystemExit(f"tiltyard runner: {error}") from None


if __name__ == "__main__":
    main()
