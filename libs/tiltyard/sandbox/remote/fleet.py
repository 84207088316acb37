"""What a provider must be able to do, so that its sandboxes become boxes.

Guarantees: everything above this is the same for all providers."""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tiltyard.sandbox.backend import OnOutput
from tiltyard.sandbox.capability import Capability, Demand
from tiltyard.sandbox.errors import CapabilityRefused
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.result import ExecOutcome
from tiltyard.sandbox.state import Entry

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose sandboxes are whose: on each as labels."""

    name: str
    """one living process uses it at a time; what an earlier one of that name left is destroyed"""
    incarnation: str

    @classmethod
    def new(cls, name: str) -> "Owner":
        """Raises CapabilityRefused for a name that cannot be a label."""
        if not _LABEL.fullmatch(name):
            raise CapabilityRefused(
                f"owner {name!r} cannot be a label: give letters, digits, '-', '_' and '.', at most 63"
            )
        return cls(name, secrets.token_hex(6))


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox of an owner's, as its provider lists it."""

    id: str
    key: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command, checked."""

    argv: list[str]
    env: Mapping[str, str]
    cwd: str
    stdin: bytes
    cpu_seconds: float
    wall_seconds: float
    output_bytes: int
    """of each stream"""
    limits: Limits
    on_output: OnOutput | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command's end."""

    outcome: ExecOutcome
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_seconds: float = 0.0
    detail: str = ""
    spoiled: str = ""
    """why the box must not be used again: something of the command may live on"""


class Guest(Protocol):
    """One remote sandbox."""

    @property
    def id(self) -> str:
        """The provider's."""
        ...

    @property
    def home(self) -> str:
        """An absolute folder that the payload may write."""
        ...

    async def run(self, order: Order) -> Ended:
        """Raises SandboxGone when it was gone before the command began."""
        ...

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """Absolute paths here and below. Raises FileFault, SandboxGone."""
        ...

    async def read(self, path: str, most: int) -> bytes:
        """Raises FileFault, FileTooLarge, SandboxGone."""
        ...

    async def list(self, path: str) -> list[Entry]: ...

    async def stat(self, path: str) -> Entry: ...

    async def mkdir(self, path: str, mode: int) -> None: ...


class Fleet(Protocol):
    """One provider, one image, one owner."""

    name: str
    """of the provider, for messages"""
    able: Mapping[Demand, Capability]

    async def create(self, key: str, seconds: float) -> Guest:
        """One sandbox for this key, however often it is asked for; it ends by itself after `seconds`.

        Raises SandboxUnavailable, CapabilityRefused, ImageFault."""
        ...

    async def owned(self) -> list[Found]:
        """Every sandbox of the owner's name, of whatever incarnation."""
        ...

    async def destroy(self, ident: str) -> None:
        """Returns when the provider no longer knows it; idempotent. Raises SandboxUnavailable."""
        ...

    async def renew(self, ident: str, seconds: float) -> None:
        """It ends by itself `seconds` from now. Raises SandboxGone when it has ended, SandboxUnavailable."""
        ...

    async def pause(self, ident: str) -> None:
        """Keeps it as it is; asked only where `able` has pause. Raises SandboxGone, SandboxUnavailable."""
        ...

    async def resume(self, ident: str, seconds: float) -> None:
        """It goes on, and ends by itself `seconds` from now. Raises SandboxGone, SandboxUnavailable."""
        ...

    async def close(self) -> None: ...


MakeFleet = Callable[[], Awaitable[Fleet]]
