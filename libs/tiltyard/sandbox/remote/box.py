"""A remote box: what every provider's sandbox becomes.

Guarantees: a command that was cut off, cancelled or ran out of time spoils its box, since nobody can tell
from here what of it lives on; a call that the provider has nothing for is refused.
Does not: count CPU time or memory; `ExecResult.cpu_seconds` is 0."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn

from tiltyard.sandbox.backend import HasFileno, OnOutput, Process
from tiltyard.sandbox.capability import Capability, Demand, cannot, require
from tiltyard.sandbox.errors import InvalidExec, SandboxBusy, SandboxGone, SandboxPaused
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.native.command import Command, content
from tiltyard.sandbox.paths import HOME, Root, locate
from tiltyard.sandbox.result import ExecResult
from tiltyard.sandbox.session import BoxSession
from tiltyard.sandbox.snapshot import Snapshot
from tiltyard.sandbox.state import BoxStats, Entry

from .fleet import Ended, Guest, Order

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RemoteBox(BoxSession):
    """See `tiltyard.sandbox.Box`."""

    def __init__(
        self,
        key: str,
        guest: Guest,
        limits: Limits,
        provider: str,
        able: Mapping[Demand, Capability],
        renew: Callable[["RemoteBox"], Awaitable[None]],
        hold: Callable[["RemoteBox", bool], Awaitable[None]],
    ) -> None:
        """`renew` makes it another; `hold` pauses its sandbox, or lets it go on."""
        self.environment: Mapping[str, str] = {}
        self.on_renewed: Callable[[], Awaitable[None]] | None = None
        self.made_in = 0.0
        self._limits = limits
        self._provider = provider
        self._able = able
        self._renew = renew
        self._hold = hold
        self._live(key, guest)

    def _live(self, key: str, guest: Guest) -> None:
        self.key = key
        self.guest = guest
        self.id = guest.id
        self.home = guest.home
        self._gone = ""
        self._running = False
        self.paused = False

    def become(self, fresh: "RemoteBox") -> None:
        """Goes on as a box that nobody has used."""
        self.made_in = fresh.made_in
        self._live(fresh.key, fresh.guest)

    def lose(self, why: str) -> None:
        """From now on nothing can be asked."""
        self._gone = self._gone or why

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
        if fds or tty:
            raise cannot(self._provider, self._able, Demand.background)
        if idle_seconds is not None:
            raise cannot(self._provider, self._able, Demand.counters)
        if on_output is not None and not self._able[Demand.streaming].enforced:
            raise cannot(self._provider, self._able, Demand.streaming)
        limits = Command.limits(cpu_seconds, wall_seconds, None, output_bytes)
        order = self._order(argv, env, cwd, stdin, limits.cpu_ns, limits.wall_ns, output_bytes, on_output)
        guest = self._usable()
        if self._running:
            raise SandboxBusy(f"box {self.id} already runs a command: await it first, or acquire another box")
        self._running = True
        try:
            for path, data in (files or {}).items():
                await self.write(path, data)
            return self._result(await guest.run(order))
        except asyncio.CancelledError:
            self.lose("a command in it was cancelled")
            raise
        finally:
            self._running = False

    def _order(
        self,
        argv: Sequence[str | bytes],
        env: Mapping[str, str] | None,
        cwd: str | None,
        stdin: bytes,
        cpu_ns: int,
        wall_ns: int,
        output_bytes: int,
        on_output: OnOutput | None,
    ) -> Order:
        told = {"HOME": self.home, **self.environment, **(env or {})}
        command = Command.build(
            argv, stdin=stdin, env=told, path=_PATH, cwd=cwd, files=None, fds=None, stream=False
        )
        where = command.cwd.decode()
        if cwd is None or where == HOME:
            where = self.home
        try:
            words = [word.decode() for word in command.argv]
        except UnicodeDecodeError as error:
            raise InvalidExec(f"an argument is not UTF-8, and {self._provider} takes text alone") from error
        return Order(
            argv=words,
            env={name.decode(): value.decode() for name, value in command.env.items()},
            cwd=where if where.startswith("/") else f"{self.home}/{where}",
            stdin=command.stdin,
            cpu_seconds=cpu_ns / 1e9,
            wall_seconds=wall_ns / 1e9,
            output_bytes=output_bytes,
            limits=self._limits,
            on_output=on_output,
        )

    def _result(self, ended: Ended) -> ExecResult:
        if ended.spoiled:
            self.lose(ended.spoiled)
        return ExecResult(
            outcome=ended.outcome,
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=ended.stdout,
            stderr=ended.stderr,
            stdout_truncated=ended.stdout_truncated,
            stderr_truncated=ended.stderr_truncated,
            cpu_seconds=0.0,
            wall_seconds=ended.wall_seconds,
            memory_peak_mb=None,
            starved=False,
            detail=ended.detail,
        )

    async def start(self, argv: Sequence[str | bytes], **options: object) -> Process:
        raise cannot(self._provider, self._able, Demand.background)

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        await self._usable().write(self._at(path), content(data, path), mode)

    async def read(self, path: str, max_bytes: int = 1_000_000) -> bytes:
        return await self._usable().read(self._at(path), max_bytes)

    async def list(self, path: str = "") -> list[Entry]:
        found = await self._usable().list(self._at(path, folder=True))
        return sorted(found, key=lambda entry: entry.name)

    async def stat(self, path: str) -> Entry:
        return await self._usable().stat(self._at(path, folder=True))

    async def mkdir(self, path: str, mode: int = 0o755) -> None:
        await self._usable().mkdir(self._at(path, folder=True), mode & 0o777)

    async def stats(self) -> BoxStats:
        raise cannot(self._provider, self._able, Demand.counters)

    async def survey(self) -> str:
        raise cannot(self._provider, self._able, Demand.counters)

    async def connect(self, port: int, *, timeout: float = 5.0) -> socket.socket:
        raise cannot(self._provider, self._able, Demand.ports)

    async def listen(self, port: int) -> socket.socket:
        raise cannot(self._provider, self._able, Demand.ports)

    def expose(self, port: int, *, path: str | None = None) -> NoReturn:
        raise cannot(self._provider, self._able, Demand.ports)

    async def snapshot(self, *, max_bytes: int = 256 << 20) -> Snapshot:
        raise cannot(self._provider, self._able, Demand.snapshots)

    async def restore(self, snapshot: Snapshot) -> None:
        raise cannot(self._provider, self._able, Demand.snapshots)

    async def pause(self) -> None:
        require(self._provider, self._able, Demand.pause)
        if self.paused:
            return
        self._usable()
        if self._running:
            raise SandboxBusy(f"box {self.id} runs a command: await its end, then pause")
        self.paused = True
        try:
            await self._hold(self, True)
        except BaseException:
            self.paused = False
            raise

    async def resume(self) -> None:
        if self.paused:
            await self._hold(self, False)
            self.paused = False

    async def reset(self) -> None:
        """Another sandbox takes its place."""
        began = time.monotonic()
        await self._renew(self)
        self.made_in = time.monotonic() - began
        if self.on_renewed is not None:
            await self.on_renewed()

    def _usable(self) -> Guest:
        if self._gone:
            raise SandboxGone(f"box {self.id} is gone: {self._gone}; acquire another")
        if self.paused:
            raise SandboxPaused(f"box {self.id} is paused: `await box.resume()` first")
        return self.guest

    def _at(self, path: str, *, folder: bool = False) -> str:
        """The absolute path; what lies below this box's own home may be named by it. Raises InvalidPath."""
        if path == self.home or path.startswith(f"{self.home}/"):
            path = HOME + path[len(self.home) :]
        root, below = locate(path, folder=folder)
        top = self.home if root is Root.home else "/tmp"
        return top if below == b"." else f"{top}/{below.decode()}"
