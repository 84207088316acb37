"""Settings of a runner, read from `TILTYARD_*` variables."""

import os
import socket
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from tiltyard.contracts.settings import CommaList, load
from tiltyard.sandbox.network.settings import NetworkSettings


class RunnerSettings(NetworkSettings):
    """What a runner needs to know."""

    database_url: str
    broker_url: str = ""
    objects_url: str
    rollout_url: str
    node: str = Field(default_factory=socket.gethostname)
    """A node has one living runner: a second one supersedes the first."""
    pool: str = "default"
    slots: int = Field(default=256, ge=1, le=100_000)
    cpu: float = Field(default_factory=lambda: float(len(os.sched_getaffinity(0))), ge=0)
    """With `memory_mb` and `gpu`: what it offers to rollouts that ask for it; the machine's, unless told."""
    memory_mb: int = Field(
        default_factory=lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20, ge=0
    )
    gpu: int = Field(default=0, ge=0)
    host: str = "127.0.0.1"
    allowed_hosts: CommaList = ()
    token_file: Path | None = None
    sandbox_port: int | None = Field(default=None, ge=0, le=65_535)
    """Where it lends sandboxes to outside harnesses; None: it lends none."""
    sandboxes: int = Field(default=8, ge=1, le=16_384)
    """Sandboxes that it lends at once."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    otlp_endpoint: str | None = None
    log_level: str = "info"

    @field_validator("sandbox_port")
    @classmethod
    def _lends_to_token_holders(cls, port: int | None, info: ValidationInfo) -> int | None:
        if port is not None and info.data.get("token_file") is None:
            raise ValueError("needs TILTYARD_TOKEN_FILE, the file of the token that borrowers show")
        return port


def read() -> RunnerSettings:
    """Settings of this process. Raises `InvalidSettings`."""
    return load(RunnerSettings, os.environ)
