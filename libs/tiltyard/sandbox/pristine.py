"""What a box that nobody has used looks like, and how another differs from it.

Guarantees: two boxes of one pool that nobody has used have equal fingerprints.
Does not: look into files. Their names are compared, and a pristine box has none."""

import hashlib
from dataclasses import dataclass, fields

_SOCKETS = ("/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6", "/proc/net/unix")
_IPC = ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem")
_FOLDERS = ("/box", "/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A box at one moment, without what differs between any two (numbers of mounts and devices)."""

    mounts: tuple[str, ...]
    """where, how, and of what kind"""
    sockets: tuple[str, ...]
    """every TCP, UDP and unix socket of its network namespace"""
    ipc: tuple[str, ...]
    """System V shared memory, queues and semaphores"""
    files: tuple[str, ...]
    """names in the folders that a payload may write"""
    processes: int
    """PID 1 included"""
    hostname: str

    @property
    def digest(self) -> str:
        """Hex; equal for equal fingerprints."""
        return hashlib.sha256(repr(self).encode(errors="surrogateescape")).hexdigest()

    def drift(self, now: "Fingerprint") -> list[str]:
        """What differs, one line a part; empty when nothing does."""
        return [
            f"{field.name}: {getattr(now, field.name)!r} instead of {getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(now, field.name) != getattr(self, field.name)
        ]

    def blemishes(self) -> list[str]:
        """What no box shows that nobody has used."""
        found = [
            f"{name}: {value!r}" for name in ("sockets", "ipc", "files") if (value := getattr(self, name))
        ]
        return found + ([f"{self.processes} processes"] if self.processes != 1 else [])


def fingerprint(survey: str) -> Fingerprint:
    """From `Box.survey`."""
    parts = _parts(survey)
    return Fingerprint(
        mounts=tuple(sorted(_mount(line) for line in parts.get("/proc/self/mountinfo", []))),
        sockets=tuple(line for name in _SOCKETS for line in parts.get(name, [])[1:]),
        ipc=tuple(line for name in _IPC for line in parts.get(name, [])[1:]),
        files=tuple(sorted(f"{name}/{line}" for name in _FOLDERS for line in parts.get(name, []))),
        processes=len(parts.get("/proc", [])),
        hostname="".join(parts.get("/proc/sys/kernel/hostname", [])),
    )


def _parts(survey: str) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    here: list[str] = []
    for line in survey.splitlines():
        if line.startswith("= "):
            here = parts.setdefault(line[2:], [])
        elif line:
            here.append(line)
    return parts


def _mount(line: str) -> str:
    """`36 35 98:0 /root /point opts opt:1 - type source super` without its numbers."""
    head, _, tail = line.partition(" - ")
    return " ".join((*head.split()[3:6], *tail.split()))
