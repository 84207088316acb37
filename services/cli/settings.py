"""Settings of the command line: which registry, which token, which local stack.

Guarantees: what is given on the command line wins over the environment, and that over the running stack.
Does not: keep a config file."""

import os
from pathlib import Path

from tiltyard.contracts.settings import Settings, load


class CliSettings(Settings):
    """What the CLI reads from TILTYARD_ variables."""

    url: str | None = None
    token: str | None = None
    token_file: Path | None = None
    state_dir: Path | None = None


def read() -> CliSettings:
    """Settings of this process; raises `InvalidSettings`."""
    return load(CliSettings, os.environ)


def state_dir(given: Path | None, settings: CliSettings) -> Path:
    """The folder of the local stack: as given, from the environment, or the machine's default."""
    chosen = given or settings.state_dir
    if chosen is not None:
        return chosen.expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/tiltyard")
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "tiltyard"


def inherited() -> dict[str, str]:
    """The environment for children, without variables of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TILTYARD_")}
