"""What the dispatcher reads from its environment."""

import os

from pydantic import Field

from tiltyard.contracts.settings import Settings, load


class DispatcherSettings(Settings):
    """`TILTYARD_…` variables of the dispatcher."""

    database_url: str
    broker_url: str = ""
    """Empty: Postgres carries the hints."""
    otlp_endpoint: str | None = None
    log_level: str = "INFO"
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """0: no metrics server."""


def read() -> DispatcherSettings:
    return load(DispatcherSettings, os.environ)
