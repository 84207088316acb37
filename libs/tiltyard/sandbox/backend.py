"""What a backend is: a source of boxes, all made from one image under one set of limits.

Guarantees: the pool and its users know no backend; each says what it enforces and refuses the rest."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from .limits import Limits
from .result import ExecResult

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]


class HasFileno(Protocol):
    """A socket, pipe or file of this process."""

    def fileno(self) -> int: ...


class Box(Protocol):
    """One isolated environment, fresh, used by one holder, then destroyed."""

    @property
    def id(self) -> str:
        """Unique in this host's uptime."""
        ...

    @property
    def home(self) -> str:
        """The folder that relative paths start from, and where commands start."""
        ...

    @property
    def made_in(self) -> float:
        """Seconds that making it took, until it could take its first command."""
        ...

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Replaces a file below `home` or /tmp, makes its parents. Raises InvalidPath, FileFault,
        SandboxGone."""
        ...

    async def read(self, path: str, max_bytes: int = 1_000_000) -> bytes:
        """A regular file's bytes; no symlink is followed.

        Raises InvalidPath, FileFault, FileTooLarge, SandboxGone."""
        ...

    async def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpu_seconds: float = 10.0,
        wall_seconds: float | None = None,
        idle_seconds: float | None = None,
        output_bytes: int = 1_000_000,
        files: Mapping[str, bytes | str] | None = None,
        fds: Mapping[int, int | HasFileno] | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Runs a command to its end; whatever it leaves running is killed.

        `env` adds to a minimal environment. `wall_seconds` None: twice `cpu_seconds` and 5. `output_bytes`
        caps each stream; more ends the command. `files` are written first, in the same message. `fds`
        gives descriptors 3 to 15 of the command. `on_output` gets output as it comes, instead of the result.
        Raises InvalidExec, InvalidPath, FileFault, SandboxBusy, SandboxGone."""
        ...


class Supply(Protocol):
    """Boxes that are made ahead, replaced as they are used up."""

    def take(self) -> Box | None:
        """A ready box, None when there is none now."""
        ...

    def discard(self, box: Box) -> None:
        """Destroys a box that was taken; idempotent, never waits."""
        ...

    async def counts(self) -> tuple[int, int, int, int]:
        """Boxes ready, created, destroyed, failed to start."""
        ...

    @property
    def restarts(self) -> int:
        """How often the source itself died and was started anew."""
        ...

    async def close(self) -> None:
        """Destroys everything and waits until it is gone."""
        ...


class SandboxBackend(Protocol):
    """A way to make boxes."""

    async def open(
        self,
        *,
        image: str,
        size: int,
        limits: Limits,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> Supply:
        """Starts making boxes. `on_ready` when one can be taken; `on_fault` when none can be made any more.

        Raises SandboxUnavailable, CapabilityRefused, ImageFault."""
        ...
