"""What a command came to.

Does not: judge. Which outcomes are the policy's own and which void a rollout is decided elsewhere."""

from dataclasses import dataclass
from enum import StrEnum


class ExecOutcome(StrEnum):
    """How a command ended."""

    ok = "ok"
    """it exited with 0"""
    nonzero = "nonzero"
    """it exited with another code, or could not be started (127 not found, 126 not executable)"""
    signalled = "signalled"
    """a signal ended it"""
    timeout_cpu = "timeout_cpu"
    """it used its CPU time"""
    timeout_wall = "timeout_wall"
    """its wall-clock time passed; see `starved`"""
    timeout_idle = "timeout_idle"
    """it neither wrote nor computed for too long"""
    oom = "oom"
    """the memory limit killed it or a part without which it failed"""
    pids = "pids"
    """it failed after the process limit had refused a fork"""
    output_limit = "output_limit"
    """it wrote more than was asked for and was killed"""
    disk_limit = "disk_limit"
    """it failed with the box's disk full, or on a file above the largest size"""
    infra_error = "infra_error"
    """the sandbox failed, not the command: retry, never score"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The end of one command, with what it had written until then."""

    outcome: ExecOutcome
    exit_code: int | None
    """None unless it exited by itself"""
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    cpu_seconds: float
    """user and system time of all its processes"""
    wall_seconds: float
    memory_peak_mb: float | None
    """MiB, most that the box held while it ran; None: not counted on this host"""
    starved: bool
    """beside a wall or idle timeout: the CPU was denied to it for a good part of the time"""
    detail: str
    """one line for people; empty when there is nothing to add"""

    @property
    def ok(self) -> bool:
        return self.outcome is ExecOutcome.ok
