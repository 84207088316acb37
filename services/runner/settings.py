"""Settings of a runner, read from `TILTYARD_*` variables."""

import os
import socket

from pydantic import Field

from tiltyard.contracts.settings import Settings, load


class RunnerSettings(Settings):
    """What a runner needs to know."""

    database_url: str
    broker_url: str = ""
    objects_url: str
    rollout_url: str
    node: str = Field(default_factory=socket.gethostname)
    """A node has one living runner: a second one supersedes the first."""
    pool: str = "default"
    slots: int = Field(default=256, ge=1, le=100_000)
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    otlp_endpoint: str | None = None
    log_level: str = "info"


def read() -> RunnerSettings:
    """Settings of this process. Raises `InvalidSettings`."""
    return load(RunnerSettings, os.environ)
