"""Settings of an evaluator, read from `TILTYARD_*` variables."""

import os
import socket

from pydantic import Field

from tiltyard.contracts.settings import load
from tiltyard.sandbox.network.settings import NetworkSettings


class EvaluatorSettings(NetworkSettings):
    """What an evaluator needs to know."""

    database_url: str
    broker_url: str = ""
    """Empty: Postgres carries the hints; amqp://…: Celery over RabbitMQ."""
    objects_url: str
    node: str = Field(default_factory=socket.gethostname)
    sandboxes: int = Field(default=8, ge=2, le=10_000)
    """Live at once, of the commonest shape."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    otlp_endpoint: str | None = None
    log_level: str = "info"


def read() -> EvaluatorSettings:
    """Settings of this process. Raises `InvalidSettings`."""
    return load(EvaluatorSettings, os.environ)
