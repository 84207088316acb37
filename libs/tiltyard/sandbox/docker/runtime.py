"""What each container runtime can hold a box to.

Does not: try. `tiltyard sandbox check --backend docker --runtime NAME` does, law by law."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tiltyard.sandbox.capability import LIMITS, Capability, Demand
from tiltyard.sandbox.capability import refuse_unenforced as refuse
from tiltyard.sandbox.errors import CapabilityRefused
from tiltyard.sandbox.native.backend import SERVED

GVISOR_MIB = 64
"""What a gVisor box gets beyond its memory limit, for the kernel of its own: about 30 are used at rest."""

_NO_DESCRIPTORS = "a host's socket carries no descriptors into gVisor"
_RUNC: Mapping[Demand, Capability] = {
    **SERVED,
    Demand.memory: Capability(True, "cgroup; swap as large as memory, so none"),
    Demand.pids: Capability(True, "cgroup"),
    Demand.cpus: Capability(True, "cgroup"),
    Demand.disk: Capability(True, "sized tmpfs: half of it /box, three eighths /tmp, the rest /dev/shm"),
    Demand.inodes: Capability(True, "tmpfs, shared out as the disk is"),
    Demand.cpu_time: Capability(True, "counted by the cgroup"),
    Demand.counters: Capability(True, "read from the cgroup; the peak is the box's, not the command's"),
    Demand.pause: Capability(True, "docker pause"),
    Demand.kernel: Capability(False, "boxes share this machine's kernel: use runsc for hostile code"),
}
_RUNSC: Mapping[Demand, Capability] = {
    **_RUNC,
    Demand.memory: Capability(
        True,
        f"cgroup of the whole box, {GVISOR_MIB} MiB larger for gVisor itself: its end is the end of the box",
    ),
    Demand.pids: Capability(
        True,
        "RLIMIT_NPROC, which gVisor counts for each box; the cgroup counts its own threads too, so its limit "
        "stands far above",
    ),
    Demand.inodes: Capability(False, "gVisor's tmpfs has a size and no number of files"),
    Demand.cpu_time: Capability(
        False,
        "summed over the processes, for a payload sees no cgroup: who ignores its children's end hides "
        "their time, until the wall time ends it",
    ),
    Demand.counters: Capability(False, "no cgroup is seen inside gVisor"),
    Demand.descriptors: Capability(False, _NO_DESCRIPTORS),
    Demand.background: Capability(False, _NO_DESCRIPTORS),
    Demand.ports: Capability(False, _NO_DESCRIPTORS),
    Demand.snapshots: Capability(True, "a tar of the files, of at most 8 MiB"),
    Demand.kernel: Capability(True, "gVisor"),
}


@dataclass(frozen=True, slots=True)
class Excuse:
    """Why a law or an attack comes out otherwise than it should."""

    seen: str
    """what is then seen of it; whoever sees anything else has no excuse"""
    reason: str


_OF_CONTAINERS = {
    "arguments and files that are too large": Excuse(
        "No space left on device", "/box has half of the disk, less than the attack's file"
    ),
}
"""What every container gives way to; none leads out."""
_ENDED = Excuse("the box ended with its memory", _RUNSC[Demand.memory].detail)
_OF_GVISOR = {
    **_OF_CONTAINERS,
    "forks end at the limit": Excuse(
        "nonzero:", "forks are refused, but nothing counts them for the verdict"
    ),
    "inodes end at the limit": Excuse("ok:", _RUNSC[Demand.inodes].detail),
    "every inode": Excuse("ok:", _RUNSC[Demand.inodes].detail),
    "a command on a terminal finds one": Excuse("refused", _RUNSC[Demand.descriptors].detail),
    "what is paused stands still, and goes on": Excuse("refused", _RUNSC[Demand.background].detail),
    "what /proc tells of the host": Excuse("'cmdline'", "gVisor makes up a kernel's command line of its own"),
    "memory of every kind": _ENDED,
    "killing the supervisor by memory": _ENDED,
    "fork bomb that ignores SIGTERM and leaves its session": _ENDED,
    "more processes than allowed": _ENDED,
}
"""Laws of `tiltyard.sandbox.conformance` and attacks of `tiltyard.sandbox.abuse`, by name."""


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
    refuse(f"runtime {runtime!r}", capabilities(runtime), accepted, of=LIMITS)


def excuse(runtime: str, tried: str, seen: str) -> str:
    """Why this runtime cannot keep a law or withstand an attack of which this was seen; empty: it must."""
    found = (_OF_GVISOR if is_gvisor(runtime) else _OF_CONTAINERS).get(tried)
    return found.reason if found is not None and found.seen in seen else ""
