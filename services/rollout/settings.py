"""Settings of a rollout service, read from `TILTYARD_*` variables."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from tiltyard.contracts.settings import Settings, load


class RolloutSettings(Settings):
    """What a rollout service needs to know."""

    database_url: str
    objects_url: str = ""
    """Where policy versions lie; the transformers engine needs it."""
    broker_url: str = ""
    """Empty: Postgres carries the hints."""
    host: str = "127.0.0.1"
    port: int = Field(default=8081, ge=0, le=65_535)
    engine: Literal["transformers", "scripted"] = "transformers"
    cache_dir: Path | None = None
    """Where a version lies while it is loaded; the system's temporary folder by default."""
    device: str = "cpu"
    torch_threads: int = Field(default=0, ge=0)
    """0: one for a small model, all cores for a large one."""
    max_batch: int = Field(default=128, ge=1, le=4_096)
    loaded_versions: int = Field(default=4, ge=2, le=64)
    script_latency_ms: float = Field(default=0.0, ge=0)
    script_share: float = Field(default=0.5, ge=0, le=1)
    script_file: Path | None = None
    otlp_endpoint: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def read() -> RolloutSettings:
    """Settings of this process. Raises `InvalidSettings`."""
    return load(RolloutSettings, os.environ)
