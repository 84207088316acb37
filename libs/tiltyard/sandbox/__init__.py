"""Isolated environments for code that models wrote: acquire, write, exec, read, and it is gone.

Guarantees: nothing runs outside a sandbox; a demand that cannot be enforced is refused; results are typed.
Does not: protect against a hole in the host's kernel, which native boxes share: use docker with runsc
for hostile code."""

from .backend import Box, Output, Process, SandboxBackend, Supply
from .breaker import BreakerPolicy, BreakerState
from .docker.backend import DockerBackend
from .doctor import Check, DoctorReport, Health, doctor
from .errors import (
    ArchiveRefused,
    CapabilityRefused,
    FileFault,
    FileTooLarge,
    ImageFault,
    InvalidExec,
    InvalidLimits,
    InvalidNetwork,
    InvalidPath,
    NetworkRefused,
    NodeUnhealthy,
    PortClosed,
    SandboxBusy,
    SandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxUnavailable,
)
from .health import Canary, PoolHealth
from .limits import Limits
from .native.backend import NativeBackend
from .network import Connection, Network, Shape
from .pool import PoolStats, WarmPool
from .result import ExecOutcome, ExecResult
from .snapshot import Snapshot
from .state import BoxStats, Entry, EntryKind

__all__ = [
    "ArchiveRefused",
    "Box",
    "BoxStats",
    "BreakerPolicy",
    "BreakerState",
    "Canary",
    "CapabilityRefused",
    "Check",
    "Connection",
    "DockerBackend",
    "DoctorReport",
    "Entry",
    "EntryKind",
    "ExecOutcome",
    "ExecResult",
    "FileFault",
    "FileTooLarge",
    "Health",
    "ImageFault",
    "InvalidExec",
    "InvalidLimits",
    "InvalidNetwork",
    "InvalidPath",
    "Limits",
    "NativeBackend",
    "Network",
    "NetworkRefused",
    "NodeUnhealthy",
    "Output",
    "PoolHealth",
    "PoolStats",
    "PortClosed",
    "Process",
    "SandboxBackend",
    "SandboxBusy",
    "SandboxError",
    "SandboxGone",
    "SandboxPaused",
    "SandboxUnavailable",
    "Shape",
    "Snapshot",
    "Supply",
    "WarmPool",
    "doctor",
]
