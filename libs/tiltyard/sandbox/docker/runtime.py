"""What each container runtime can hold a box to.

Guarantees: a demand that a runtime cannot enforce is refused with the reason, unless the caller accepts that
by name.
Does not: try. `tiltyard sandbox check --backend docker --runtime NAME` does, law by law."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiltyard.sandbox.errors import CapabilityRefused


class Demand(StrEnum):
    """What a caller may demand of a box."""

    memory = "memory"
    """an end at so many bytes, swap excluded"""
    pids = "pids"
    """no more than so many processes and threads, refused one by one"""
    cpus = "cpus"
    """no more than so many CPUs' time"""
    disk = "disk"
    """no more than so many bytes in files"""
    inodes = "inodes"
    """no more than so many files"""
    cpu_time = "cpu_time"
    """an end once all its processes together used so much CPU time"""
    counters = "counters"
    """peak memory, throttled time and refused forks are told with a result"""
    descriptors = "descriptors"
    """descriptors of the caller become the command's (`exec(fds=…)`)"""
    kernel = "kernel"
    """a kernel of its own between the payload and this machine's"""


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a demand holds, and how or why not."""

    enforced: bool
    detail: str


_RUNC: Mapping[Demand, Capability] = {
    Demand.memory: Capability(True, "cgroup; swap as large as memory, so none"),
    Demand.pids: Capability(True, "cgroup"),
    Demand.cpus: Capability(True, "cgroup"),
    Demand.disk: Capability(True, "sized tmpfs: half of it /box, three eighths /tmp, the rest /dev/shm"),
    Demand.inodes: Capability(True, "tmpfs, shared out as the disk is"),
    Demand.cpu_time: Capability(True, "counted by the cgroup"),
    Demand.counters: Capability(True, "read from the cgroup; the peak is the box's, not the command's"),
    Demand.descriptors: Capability(True, "passed over the box's socket"),
    Demand.kernel: Capability(False, "boxes share this machine's kernel: use runsc for hostile code"),
}
_RUNSC: Mapping[Demand, Capability] = {
    **_RUNC,
    Demand.memory: Capability(True, "cgroup of the whole sandbox: its end is the end of the box"),
    Demand.pids: Capability(
        False,
        "gVisor refuses no fork; the cgroup counts its own threads too, so its limit stands far above and "
        "ends the whole box",
    ),
    Demand.inodes: Capability(False, "gVisor's tmpfs has a size and no number of files"),
    Demand.cpu_time: Capability(
        False,
        "summed over the processes, for a payload sees no cgroup: who ignores its children's end hides "
        "their time, until the wall time ends it",
    ),
    Demand.counters: Capability(False, "no cgroup is seen inside gVisor"),
    Demand.descriptors: Capability(False, "a host's socket carries no descriptors into gVisor"),
    Demand.kernel: Capability(True, "gVisor"),
}
_LIMITS = (Demand.memory, Demand.pids, Demand.cpus, Demand.disk, Demand.inodes)
"""What `Limits` demands of every box."""
_TRIED_BY = {
    "forks end at the limit": Demand.pids,
    "inodes end at the limit": Demand.inodes,
    "a command on a terminal finds one": Demand.descriptors,
}
"""Laws of `tiltyard.sandbox.conformance` that try what some runtime cannot enforce."""

_OF_CONTAINERS = {
    "what /proc tells of the host": "PID 1 was started by the runtime: its arguments can be read",
    "CPUs that it sees and may not use": "a container's share of CPU time says nothing of their number",
    "arguments and files that are too large": "/box has half of the disk, less than the attack's file",
}
"""Attacks that every container gives way to, and why; none leads out."""


def is_gvisor(runtime: str) -> bool:
    return runtime.startswith("runsc")


def capabilities(runtime: str) -> Mapping[Demand, Capability]:
    """Raises CapabilityRefused for a runtime whose boxes cannot be spoken to."""
    if runtime.startswith("kata"):
        raise CapabilityRefused(
            f"runtime {runtime!r}: a unix socket in a bound folder does not reach into a virtual machine, "
            "so its boxes cannot be spoken to; use runsc"
        )
    return _RUNSC if is_gvisor(runtime) else _RUNC


def refuse_unenforced(runtime: str, accepted: Collection[Demand]) -> None:
    """Raises CapabilityRefused."""
    able = capabilities(runtime)
    missing = [demand for demand in _LIMITS if not able[demand].enforced and demand not in accepted]
    if missing:
        reasons = "; ".join(f"{demand}: {able[demand].detail}" for demand in missing)
        raise CapabilityRefused(
            f"runtime {runtime!r} cannot enforce {' and '.join(missing)} ({reasons}); accept that by name "
            f"({', '.join(f'--accept {demand}' for demand in missing)}, or accept= in Python) or use runc"
        )


def excuse(runtime: str, tried: str) -> str:
    """Why this runtime cannot keep a law or withstand an attack; empty: it must."""
    if tried in _OF_CONTAINERS:
        return _OF_CONTAINERS[tried]
    demand = _TRIED_BY.get(tried)
    able = capabilities(runtime)
    return "" if demand is None or able[demand].enforced else able[demand].detail
