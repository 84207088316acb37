"""What a running stack tells about itself, in `STATE/status.json`.

Guarantees: written whole or not at all; a status whose supervisor has died is no status.
Does not: ask the services; the supervisor has."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "status.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One child of the supervisor."""

    pid: int | None
    """None while it waits to be started again."""
    ready: bool
    restarts: int
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The stack as its supervisor last saw it."""

    state: str
    """`starting`, `ready`, `failed` or `stopping`."""
    supervisor: int
    """Process id."""
    url: str
    started_at: float
    """Seconds since the epoch."""
    database_url: str = ""
    error: str = ""
    services: dict[str, ServiceStatus] = field(default_factory=dict)


def write_status(folder: Path, status: Status) -> None:
    """Replace the status file, readable by its owner alone."""
    scratch = folder / f"{FILE}.new"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(status), file)
    scratch.replace(folder / FILE)


def read_status(folder: Path, *, even_dead: bool = False) -> Status | None:
    """The status of the stack in `folder`; None when no supervisor lives there."""
    try:
        data = json.loads((folder / FILE).read_text())
        services = {name: ServiceStatus(**row) for name, row in data.pop("services").items()}
        status = Status(**data, services=services)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return status if even_dead or is_supervisor(status.supervisor, folder) else None


def is_supervisor(pid: int, folder: Path) -> bool:
    """Whether the process is the supervisor of this folder, and not another that got its number."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"services.cli.resident" in words and os.fsencode(folder) in words
