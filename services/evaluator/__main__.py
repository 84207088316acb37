"""`python -m services.evaluator`: the composition root."""

import asyncio
import signal
from contextlib import closing

from services.evaluator import worker
from services.evaluator.app import desks
from services.evaluator.settings import EvaluatorSettings, read
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.sandbox import SandboxUnavailable
from tiltyard.telemetry.garbage import look_seldom
from tiltyard.telemetry.setup import Telemetry, setup


async def on_postgres(settings: EvaluatorSettings, telemetry: Telemetry) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with desks(settings, telemetry) as open_desks:
        await worker.run(open_desks, settings.database_url, stop)


def main() -> None:
    try:
        settings = read()
        telemetry = setup("evaluator", settings.otlp_endpoint, log_level=settings.log_level)
        if settings.metrics_port:
            telemetry.metrics.serve(settings.metrics_port)
        if settings.broker_url:
            from services.evaluator import celery  # takes 0.3 s: only who has a broker pays
            from services.evaluator.dead_letters import Collector

            look_seldom()
            with closing(Collector(settings.broker_url, settings.database_url)):
                celery.serve(lambda: desks(settings, telemetry), settings.broker_url)
        else:
            look_seldom()
            asyncio.run(on_postgres(settings, telemetry))
        telemetry.shutdown()
    except (InvalidSettings, SandboxUnavailable) as error:
        raise SystemExit(f"tiltyard evaluator: {error}") from None


if __name__ == "__main__":
    main()
