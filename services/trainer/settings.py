"""What the trainer reads from its environment."""

import os
from pathlib import Path

from pydantic import Field

from tiltyard.contracts.settings import Settings, load


class TrainerSettings(Settings):
    """`TILTYARD_…` variables of the trainer."""

    database_url: str
    broker_url: str = ""
    objects_url: str
    cache_dir: Path
    """Where checkpoints are unpacked; may be emptied at any time."""
    device: str = "cpu"
    torch_threads: int = Field(default=0, ge=0)
    """0: torch decides."""
    otlp_endpoint: str | None = None
    log_level: str = "INFO"


def read() -> TrainerSettings:
    return load(TrainerSettings, os.environ)
