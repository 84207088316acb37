"""`/v1/sandboxes`: sandboxes of a runner, lent over HTTP.

Guarantees: what a runner's answer may hold is here; a client needs nothing of the engine.
Does not: isolate; `tiltyard.sandbox` does."""

from typing import Literal

from pydantic import Field

from tiltyard.contracts.document import Document
from tiltyard.contracts.network import NONE, NetworkDemand

Encoding = Literal["text", "base64"]
"""How bytes stand in JSON: UTF-8 with what is not UTF-8 replaced, or base64."""
Seconds = Field(default=60.0, ge=1.0, le=3_600.0)


class LentLimits(Document):
    """What one sandbox may use; see `tiltyard.sandbox.Limits`."""

    memory_mb: int
    pids: int
    cpus: float
    disk_mb: int
    inodes: int
    nofile: int
    file_mb: int | None = None


class SandboxOrder(Document):
    """`POST /v1/sandboxes`. Image and limits, when given, must be the runner's: nothing is weakened."""

    lease_seconds: float = Seconds
    """The sandbox is destroyed after this long without a request."""
    wait_seconds: float = Field(default=30.0, ge=0.0, le=60.0)
    """How long to wait for a free one."""
    image: str | None = None
    limits: LentLimits | None = None
    network: NetworkDemand = NONE
    """What it may reach, of what the runner's operator lets borrowers ask for."""


class LentSandbox(Document):
    """A sandbox that a caller holds."""

    id: str
    image: str
    limits: LentLimits
    home: str
    """The folder that relative paths start from, and where commands start."""
    lease_seconds: float
    expires_in_seconds: float
    """Until it is destroyed if nobody asks for it; each request starts the lease anew."""
    network: NetworkDemand = NONE
    """What it may reach."""
    paused: bool = False
    """Whether it stands still: commands and files are refused (409) until it is resumed."""


class SandboxPage(Document):
    """`GET /v1/sandboxes`."""

    items: tuple[LentSandbox, ...]
    size: int
    """Sandboxes that the runner lends at once."""
    ready: int
    """Of these, made and not lent."""


class LentConnection(Document):
    """One connection out of a sandbox, at its end; see `tiltyard.sandbox.Connection`."""

    number: int
    """Counts the connections of one sandbox from 1."""
    host: str
    port: int
    address: str
    """That was connected to, or refused; empty when it did not come so far."""
    verdict: str
    reason: str
    detail: str
    bytes_up: int
    bytes_down: int
    started: float
    """Seconds since 1970."""
    seconds: float


class ConnectionPage(Document):
    """`GET /v1/sandboxes/{id}/connections`."""

    items: tuple[LentConnection, ...]


class Renewal(Document):
    """`POST /v1/sandboxes/{id}/lease`."""

    lease_seconds: float = Seconds


class Command(Document):
    """`POST /v1/sandboxes/{id}/exec`: a command and its limits."""

    argv: tuple[str, ...] = Field(min_length=1, max_length=4_096)
    stdin: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to a minimal environment."""
    cwd: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
    """Written before it starts: path → text."""
    cpu_seconds: float = Field(default=10.0, gt=0.0, le=3_600.0)
    wall_seconds: float | None = Field(default=None, gt=0.0, le=3_600.0)
    """None: twice the CPU time and 5."""
    idle_seconds: float | None = Field(default=None, gt=0.0, le=3_600.0)
    output_bytes: int = Field(default=1_000_000, ge=0, le=16_000_000)
    """Most bytes of each stream; more ends the command."""
    encoding: Encoding = "text"
    """Of stdout and stderr in the answer."""


class CommandResult(Document):
    """How a command ended; `outcome` is one of `tiltyard.sandbox.ExecOutcome`."""

    outcome: str
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    encoding: Encoding
    stdout_truncated: bool
    stderr_truncated: bool
    cpu_seconds: float
    wall_seconds: float
    memory_peak_mb: float | None
    starved: bool
    """Beside a wall or idle timeout: the CPU was denied to it, so the time says nothing about it."""
    detail: str


class CommandEvent(Document):
    """One line of a streamed answer: output as it comes, and the result as the last."""

    stream: Literal["stdout", "stderr"] | None = None
    data: str = ""
    result: CommandResult | None = None
