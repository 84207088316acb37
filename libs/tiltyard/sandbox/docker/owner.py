"""Whose containers these are, told by their labels, so that what a dead process left can be found.

Guarantees: a container is swept when its owner can be seen to be dead, or when it has ended.
Does not: judge owners of another boot or PID namespace: whether they live cannot be seen from here."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tiltyard.sandbox.errors import SandboxUnavailable

from .daemon import Daemon

OWNER, REALM = "tiltyard.owner", "tiltyard.realm"
_ENDED = {"exited", "dead"}


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _realm() -> str:
    """Where process numbers mean what they mean here: this boot and this PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"


def _is_dead(owner: str) -> bool:
    pid, _, start = owner.partition("-")
    return pid.isdigit() and _started(int(pid)) != start.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Owner:
    """This process and a private folder of it, where the boxes' sockets begin."""

    name: str
    realm: str
    folder: Path

    @property
    def labels(self) -> dict[str, str]:
        return {OWNER: self.name, REALM: self.realm}

    def leave(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _place() -> Path:
    """Where owners have their folders. Raises SandboxUnavailable."""
    if os.geteuid() == 0:
        place = Path("/run/tiltyard/docker")
    else:
        above = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        place = above / f"tiltyard-docker-{os.geteuid()}"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = place.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SandboxUnavailable(f"{place} is another user's or open to others: remove it")
    return place


def enter() -> Owner:
    """This process as an owner; folders of dead ones go. Raises SandboxUnavailable."""
    place = _place()
    for other in place.iterdir():
        if _is_dead(other.name):
            shutil.rmtree(other, ignore_errors=True)
    name = f"{os.getpid()}-{_started(os.getpid())}"
    return Owner(name, _realm(), Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place)))


def sweep(daemon: Daemon, realm: str) -> int:
    """Removes what dead owners left; how many containers that were. Raises SandboxUnavailable."""
    swept = 0
    with daemon.speaking("looking for orphans"):
        found = daemon.client.containers(all=True, filters={"label": OWNER})
    for container in found:
        labels = container.get("Labels") or {}
        dead = labels.get(REALM) == realm and _is_dead(labels[OWNER])
        if not dead and container.get("State") not in _ENDED:
            continue
        daemon.remove(container["Id"])
        swept += 1
    return swept
