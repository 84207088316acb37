"""What a box that nobody has used looks like, and how another differs from it.

Guarantees: two boxes of one pool that nobody has used have equal fingerprints.
Does not: look into files. Their names are compared, and a pristine box has none."""

import hashlib
from dataclasses import dataclass, fields

_COUNTERS = ("/proc/net/sockstat", "/proc/net/sockstat6")
_IPC = ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem")
_FOLDERS = ("/box", "/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A box at one moment, without what differs between any two (numbers of mounts and devices)."""

    mounts: tuple[str, ...]
    """where, how, and of what kind"""
    sockets: tuple[str, ...]
    """of its network namespace: how many of each kind are in use, and every unix socket"""
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
        sockets=(*_in_use(parts), *parts.get("/proc/net/unix", [])[1:]),
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


def _in_use(parts: dict[str, list[str]]) -> list[str]:
    """`TCP: inuse 1 orphan 0 tw 0 …` → `TCP: inuse 1`, if there is any; the other figures are the host's."""
    lines = [line.split() for name in _COUNTERS for line in parts.get(name, [])]
    return [" ".join(words[:3]) for words in lines if words[1:2] == ["inuse"] and words[2] != "0"]


def _mount(line: str) -> str:
    """`36 35 98:0 /root /point opts opt:1 - type source super` without its numbers."""
    head, _, tail = line.partition(" - ")
    return " ".join((*head.split()[3:6], *tail.split()))
