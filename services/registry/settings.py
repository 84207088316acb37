"""Settings of the registry, read from `TILTYARD_*` variables."""

import os
from pathlib import Path

from pydantic import Field

from tiltyard.contracts.settings import CommaList, Settings, load


class RegistrySettings(Settings):
    """What the registry reads from TILTYARD_ variables."""

    database_url: str = Field(pattern=r"^postgres(ql)?(\+psycopg)?://")
    objects_url: str = Field(pattern=r"^(file|s3)://")
    token_file: Path
    broker_url: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    allowed_hosts: CommaList = ()
    max_body_bytes: int = Field(default=32_000_000, ge=1_000)
    max_artifact_bytes: int = Field(default=4_000_000_000, ge=1_000)
    otlp_endpoint: str | None = None


def read() -> RegistrySettings:
    """Settings of this process; raises `InvalidSettings`."""
    return load(RegistrySettings, os.environ)
