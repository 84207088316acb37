"""How often a container's memory limit killed, read from its cgroup on this host.

Guarantees: a number is the kernel's own count, also in the moments after the container's end.
Does not: outlive the cgroup, or see it from another cgroup namespace. Then nothing is known here, and the
daemon is asked."""

import os
from contextlib import suppress
from pathlib import Path

_MOUNTS = {"memory": ("/sys/fs/cgroup/memory", "memory.oom_control"), "": ("/sys/fs/cgroup", "memory.events")}
_COUNTER = b"oom_kill "


def open_kills(pid: int) -> int:
    """A descriptor to ask by `kills`; -1: the cgroup cannot be seen from here."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name, (mount, file) in _MOUNTS.items():
                if name in controllers.split(","):
                    with suppress(OSError):
                        return os.open(f"{mount}{path}/{file}", os.O_RDONLY | os.O_CLOEXEC)
    return -1


def kills(descriptor: int) -> int | None:
    """How many processes the limit killed; None: not known, as the cgroup is gone."""
    try:
        lines = os.pread(descriptor, 4096, 0).splitlines()
    except OSError:
        return None
    counts = [line.removeprefix(_COUNTER) for line in lines if line.startswith(_COUNTER)]
    return int(counts[0]) if counts else None
