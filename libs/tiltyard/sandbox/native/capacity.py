"""Whether this process and this host can hold as many boxes as a pool wants.

Guarantees: what is missing is said before the first box is made, with the limit, its value and the cure.
Does not: raise a limit of the calling process; that is its owner's matter. Nor foresee memory."""

import resource
from pathlib import Path

from tiltyard.sandbox.errors import SandboxUnavailable

_OWN_DESCRIPTORS = 64
"""of the calling process, beside one a box"""
_HOST_DESCRIPTORS = 512
"""of tilt-host, beside one a box: boxes that are being made or were not taken yet hold more"""
_OTHER_PROCESSES = 512


def check_capacity(size: int) -> None:
    """Raises SandboxUnavailable."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < size + _HOST_DESCRIPTORS:
        raise SandboxUnavailable(
            f"a pool of {size} boxes needs {size + _HOST_DESCRIPTORS} descriptors, and no process started "
            f"from here may open more than {hard}: raise the hard limit (`ulimit -Hn`), or make the pool "
            "smaller"
        )
    if soft != resource.RLIM_INFINITY and soft < size + _OWN_DESCRIPTORS:
        raise SandboxUnavailable(
            f"a pool of {size} boxes needs {size + _OWN_DESCRIPTORS} descriptors, and this process may open "
            f"{soft}: raise the limit (`ulimit -Sn {hard}`, or resource.setrlimit), or make the pool smaller"
        )
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    if most < size + _OTHER_PROCESSES:
        raise SandboxUnavailable(
            f"a pool of {size} boxes needs as many processes, and this host numbers them up to {most}: "
            "`sysctl kernel.pid_max=4194304`, or make the pool smaller"
        )
