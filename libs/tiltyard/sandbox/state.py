"""What a box holds: its files' names, and how much it uses.

Does not: trust them. A payload chooses names, and may change a file between a look and a read."""

from dataclasses import dataclass
from enum import StrEnum
from stat import S_ISDIR, S_ISLNK, S_ISREG


class EntryKind(StrEnum):
    """What a name stands for."""

    file = "file"
    """a regular file"""
    folder = "folder"
    """a folder"""
    symlink = "symlink"
    """a symbolic link, never followed"""
    other = "other"
    """a FIFO, socket or device: it cannot be read"""

    @classmethod
    def of(cls, mode: int) -> "EntryKind":
        """From the type bits of st_mode."""
        if S_ISREG(mode):
            return cls.file
        if S_ISDIR(mode):
            return cls.folder
        return cls.symlink if S_ISLNK(mode) else cls.other


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a folder of a box."""

    name: str
    """bytes that are not UTF-8 come as lone surrogates (os.fsdecode)"""
    kind: EntryKind
    size: int
    """bytes"""
    mode: int
    """permission bits"""
    modified: float
    """seconds since 1970"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxStats:
    """What a box used since it began, and uses now. A counter that the host lacks reads 0."""

    cpu_seconds: float
    throttled_seconds: float
    """time that its CPU limit denied to it"""
    memory_mb: float
    """MiB now, its files included"""
    memory_peak_mb: float
    """MiB, most since the last command began (the box began, on cgroup v2 before Linux 6.12)"""
    disk_used_mb: float
    disk_mb: float
    inodes_used: int
    inodes: int
    processes: int
    """now, its PID 1 and one for each background command included"""
    oom_kills: int
    pids_hits: int
    """forks that the process limit refused"""
    background: int
    """commands that `start` started and that still run"""
