"""How much one box may use.

Guarantees: a `Limits` that exists makes sense.
Does not: know whether the host can enforce it; `doctor()` does."""

from dataclasses import dataclass
from math import isfinite

from .errors import InvalidLimits

_MIB = 1 << 20
_RANGES = {
    "memory_mb": (16, 1 << 20),
    "pids": (1, 32_768),
    "cpus": (0.05, 1024),
    "disk_mb": (1, 1 << 20),
    "inodes": (64, 1 << 24),
    "nofile": (128, 1 << 20),
    "file_mb": (1, 1 << 20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One box's limits. Files count as memory, so `disk_mb` must be below `memory_mb`."""

    memory_mb: int = 512
    """MiB of memory, swap excluded, files of the box and kernel memory included"""
    pids: int = 64
    """processes and threads at once"""
    cpus: float = 1.0
    """CPUs' worth of time in any 100 ms"""
    disk_mb: int = 64
    """MiB in all that the box writes (/box, /tmp, /dev/shm)"""
    inodes: int = 16_384
    """files and folders in all that the box writes"""
    nofile: int = 256
    """open descriptors a process"""
    file_mb: int | None = None
    """MiB of the largest file; None: `disk_mb`"""

    def __post_init__(self) -> None:
        """Raises InvalidLimits."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == "file_mb":
                continue
            whole = name != "cpus"
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else int | float)
                or not isfinite(value)
            ):
                raise InvalidLimits(f"limit {name} is {value!r}: give {'a whole' if whole else 'a'} number")
            if not low <= value <= high:
                raise InvalidLimits(f"limit {name} is {value}: give {low} to {high}")
        if self.disk_mb >= self.memory_mb:
            raise InvalidLimits(
                f"disk_mb ({self.disk_mb}) must be below memory_mb ({self.memory_mb}): "
                "a box's files are held in its memory"
            )

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * _MIB

    @property
    def disk_bytes(self) -> int:
        return self.disk_mb * _MIB

    @property
    def file_bytes(self) -> int:
        return (self.file_mb or self.disk_mb) * _MIB
