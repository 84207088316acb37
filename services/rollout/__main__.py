"""`python -m services.rollout`: tokens from policy versions, over HTTP."""

import uvloop

from services.rollout.server import serve
from services.rollout.settings import read
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.telemetry.setup import setup


def main() -> None:
    try:
        settings = read()
    except InvalidSettings as error:
        raise SystemExit(f"tiltyard rollout: {error}") from None
    telemetry = setup("rollout", settings.otlp_endpoint, log_level=settings.log_level.upper())
    try:
        uvloop.run(serve(settings, telemetry))
    except ValueError as error:
        raise SystemExit(f"tiltyard rollout: {error}") from None
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()
