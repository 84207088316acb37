"""What a backend is: a source of boxes, all made from one image under one set of limits.

Guarantees: the pool and its users know no backend; each says what it enforces and refuses the rest."""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from .capability import Capability, Demand
from .limits import Limits
from .result import ExecResult
from .snapshot import Snapshot
from .state import BoxStats, Entry

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]


class HasFileno(Protocol):
    """A socket, pipe or file of this process."""

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A part of what a background command wrote."""

    data: bytes
    start: int
    """offset of its first byte; above what was asked for when older bytes are no longer kept"""
    end: int
    """offset of the next byte to come: ask from here next"""


class Process(Protocol):
    """A command that runs beside others in a box; its end takes whatever it started."""

    def poll(self) -> ExecResult | None:
        """Its end, with the output that is kept; None while it runs."""
        ...

    def output(self, stream: Stream = "stdout", offset: int = 0) -> Output:
        """What it wrote from `offset` on, as far as it has come and is kept."""
        ...

    async def more(self, stream: Stream = "stdout", offset: int = 0) -> Output:
        """As `output`, but waits until there is something, or the command has ended."""
        ...

    async def send(self, data: bytes) -> None:
        """Writes to its stdin. Raises InvalidExec when that is closed, SandboxGone when nobody reads it."""
        ...

    def close_input(self) -> None:
        """The end of its stdin; on a terminal a typed Ctrl-D. Idempotent."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Raises InvalidExec when it has no terminal."""
        ...

    async def wait(self) -> ExecResult:
        """Its end."""
        ...

    async def kill(self) -> ExecResult:
        """Ends it with everything that it started, and waits until that is gone."""
        ...


class Box(Protocol):
    """One isolated environment, fresh, used by one holder, then destroyed.

    Processes started by `start` live beside commands of `exec`; nothing survives `reset` or the box."""

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

    @property
    def paused(self) -> bool:
        """Whether it stands still; whatever but `resume` and `reset` is asked then raises SandboxPaused."""
        ...

    environment: Mapping[str, str]
    """Added to that of each command; a command's own `env` stands above it."""

    on_renewed: Callable[[], Awaitable[None]] | None
    """Called when `reset` has made it another box, before it is used."""

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
        tty: tuple[int, int] | None = None,
    ) -> ExecResult:
        """Runs a command to its end; whatever it leaves running is killed.

        `env` adds to a minimal environment. `wall_seconds` None: twice `cpu_seconds` and 5. `output_bytes`
        caps each stream; more ends the command. `files` are written first, in the same message. `fds`
        gives descriptors 3 to 15 of the command. `on_output` gets output as it comes, instead of the result.
        `tty` gives it a terminal of so many rows and columns, whose output is all stdout.
        Raises InvalidExec, InvalidPath, FileFault, SandboxBusy, SandboxGone."""
        ...

    async def start(
        self,
        argv: Sequence[str | bytes],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpu_seconds: float = 1e6,
        wall_seconds: float = 1e6,
        idle_seconds: float | None = None,
        output_bytes: int = 1 << 30,
        keep_bytes: int = 1_000_000,
        files: Mapping[str, bytes | str] | None = None,
        fds: Mapping[int, int | HasFileno] | None = None,
        tty: tuple[int, int] | None = None,
    ) -> Process:
        """Runs a command in the background, until it ends, is killed, or the box goes; at most 8 at once.

        Its stdin is open (`Process.send`). Of each stream the newest `keep_bytes` are kept. Each takes one
        more process of the box's limit. Raises as `exec`."""
        ...

    async def connect(self, port: int, *, timeout: float = 5.0) -> socket.socket:
        """A connection to a TCP server that listens on the box's loopback; it may start within `timeout`.

        A non-blocking socket: `asyncio.open_connection(sock=...)`. Raises PortClosed, SandboxGone."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """A listener of this process on 127.0.0.1:`port` inside the box, non-blocking; the caller closes it.

        Raises PortClosed, CapabilityRefused, SandboxGone."""
        ...

    def expose(self, port: int, *, path: str | None = None) -> AbstractAsyncContextManager[str]:
        """Forwards a listener of this host to a port of the box, until the end of the context.

        Gives the address: `127.0.0.1:PORT`, or with `path` that of a unix socket, which is made."""
        ...

    async def list(self, path: str = "") -> list[Entry]:
        """What a folder holds, by name, without what lies deeper. Raises InvalidPath, FileFault."""
        ...

    async def stat(self, path: str) -> Entry:
        """One name; a symlink is told, not followed. Raises InvalidPath, FileFault."""
        ...

    async def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Makes a folder and those above it; one that exists is left. Raises InvalidPath, FileFault."""
        ...

    async def tar_in(self, archive: bytes, path: str = "", *, max_bytes: int = 64 << 20) -> int:
        """Unpacks a tar (plain or compressed) into a folder; how many files and folders it held.

        Whole or, when the archive holds anything but files and folders below it or more than `max_bytes`,
        not at all. Raises ArchiveRefused, InvalidPath, FileFault."""
        ...

    async def tar_out(self, path: str = "", *, max_bytes: int = 64 << 20) -> bytes:
        """A folder's files and folders as a plain tar; symlinks and special files are left out.

        Raises ArchiveRefused above `max_bytes` or 20,000 entries, InvalidPath, FileFault."""
        ...

    async def snapshot(self, *, max_bytes: int = 256 << 20) -> Snapshot:
        """Its files (/box, /tmp, /dev/shm), for `restore` and `WarmPool.fork`; processes are not kept.

        Raises ArchiveRefused, CapabilityRefused when the image has no `tar`, SandboxBusy, SandboxGone."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Unpacks a snapshot's files over its own. Raises as `snapshot`."""
        ...

    async def stats(self) -> BoxStats:
        """What it uses. Raises SandboxGone."""
        ...

    async def survey(self) -> str:
        """Everything that a pristine box would show too: mounts, sockets, IPC, files, processes."""
        ...

    async def pause(self) -> None:
        """Stops its background commands where they are; no clock of theirs runs on. Idempotent.

        Memory and files stay as they are. Raises SandboxBusy while a command of `exec` runs,
        CapabilityRefused, SandboxGone, SandboxUnavailable."""
        ...

    async def resume(self) -> None:
        """They go on. Idempotent. Raises SandboxGone, SandboxUnavailable."""
        ...

    async def reset(self) -> None:
        """Makes it pristine, and verifies that it is: nothing of before exists any more.

        Raises SandboxGone when no pristine state can be had."""
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

    @property
    def drifted(self) -> int:
        """Fresh boxes that were not pristine, and were destroyed with what they were made from."""
        ...

    async def close(self) -> None:
        """Destroys everything and waits until it is gone."""
        ...


@runtime_checkable
class KeepingSupply(Supply, Protocol):
    """A supply that keeps something between boxes: native, its cells."""

    def quarantine(self, box: Box) -> None:
        """As `discard`; what is kept is given up with the box."""
        ...


class SandboxBackend(Protocol):
    """A way to make boxes."""

    def capabilities(self) -> Mapping[Demand, Capability]:
        """What its boxes are held to and can do, and why not the rest."""
        ...

    async def open(
        self,
        *,
        image: str,
        size: int,
        limits: Limits,
        max_reuses: int = 0,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> Supply:
        """Starts making boxes. `on_ready` when one can be taken; `on_fault` when none can be made any more.

        `max_reuses`: how many boxes may use what is kept between boxes (native: a cell), 0: any number.

        Raises SandboxUnavailable, CapabilityRefused, ImageFault."""
        ...
