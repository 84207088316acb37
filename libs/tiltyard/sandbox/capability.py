"""What a backend can hold a box to, and what its boxes can do.

Guarantees: whatever every box promises and a backend does not keep is refused with the reason, unless the
caller accepts that by name.
Does not: try. `tiltyard sandbox check` does, law by law."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiltyard.sandbox.errors import CapabilityRefused


class Demand(StrEnum):
    """What a caller may demand of a box."""

    memory = "memory"
    """an end at so many bytes, swap excluded"""
    pids = "pids"
    """no more than so many processes and threads"""
    cpus = "cpus"
    """no more than so many CPUs' time"""
    disk = "disk"
    """no more than so many bytes in files"""
    inodes = "inodes"
    """no more than so many files"""
    cpu_time = "cpu_time"
    """an end once all processes of a command together used so much CPU time"""
    leftovers = "leftovers"
    """what a command leaves running is killed when it ends"""
    counters = "counters"
    """CPU time, memory and refused forks are told with a result"""
    descriptors = "descriptors"
    """descriptors of the caller become the command's (`exec(fds=…)`)"""
    kernel = "kernel"
    """a kernel of its own between the payload and its host's"""
    streaming = "streaming"
    """output as it comes (`on_output`)"""
    background = "background"
    """commands beside others (`start`), and terminals"""
    ports = "ports"
    """sockets into a box (`connect`, `expose`, `listen`), and so a network through our proxy"""
    snapshots = "snapshots"
    """`snapshot` and `restore`"""
    pause = "pause"
    """`pause` and `resume`"""


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a demand holds, and how or why not."""

    enforced: bool
    detail: str


LIMITS = (Demand.memory, Demand.pids, Demand.cpus, Demand.disk, Demand.inodes)
"""What `Limits` demands."""
OF_EVERY_BOX = (*LIMITS, Demand.cpu_time, Demand.leftovers)
"""What a caller relies on without asking."""


def refuse_unenforced(
    name: str,
    able: Mapping[Demand, Capability],
    accepted: Collection[Demand],
    *,
    of: Collection[Demand] = OF_EVERY_BOX,
) -> None:
    """Raises CapabilityRefused."""
    missing = [demand for demand in of if not able[demand].enforced and demand not in accepted]
    if missing:
        reasons = "; ".join(f"{demand}: {able[demand].detail}" for demand in missing)
        raise CapabilityRefused(
            f"{name} cannot enforce {', '.join(missing)} ({reasons}); accept that by name "
            f"({' '.join(f'--accept {demand}' for demand in missing)}, or accept= in Python) "
            "or use another backend"
        )


def require(name: str, able: Mapping[Demand, Capability], demand: Demand) -> None:
    """Before a call that not every backend's boxes have. Raises CapabilityRefused."""
    if not able[demand].enforced:
        raise cannot(name, able, demand)


def cannot(name: str, able: Mapping[Demand, Capability], demand: Demand) -> CapabilityRefused:
    """The error for a call that a backend's boxes do not have."""
    return CapabilityRefused(f"{name} has no {demand}: {able[demand].detail}")
