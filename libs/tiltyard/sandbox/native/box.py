"""A native box: one socket to its tilt-init, and one to each branch that serves a background command.

Guarantees: a command that is cancelled is killed and the box is spoiled.
Does not: destroy the box. Its supply does (`NativeSupply.discard`)."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tiltyard.sandbox.backend import HasFileno, OnOutput
from tiltyard.sandbox.errors import CapabilityRefused, FileFault, PortClosed, SandboxBusy, SandboxGone
from tiltyard.sandbox.paths import HOME
from tiltyard.sandbox.result import ExecOutcome, ExecResult
from tiltyard.sandbox.session import BoxSession
from tiltyard.sandbox.state import BoxStats

from . import wire
from .command import Command
from .files import BoxFiles
from .link import InitLink
from .port import dial, listen
from .process import NativeProcess
from .rest import BoxRest, Freeze
from .terminal import Terminal
from .verdict import lost, result

_RETRY_SECONDS = 0.02
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Keeper:
    """What a box asks of the supply that made it."""

    died_of_memory: Callable[["NativeBox"], Awaitable[bool]]
    renew: Callable[["NativeBox"], Awaitable[None]] | None = None
    """None: its boxes cannot be reset"""
    freeze: Callable[["NativeBox", bool], Awaitable[None]] | None = None
    """stops a box's payload, or lets it go on; None: its boxes cannot be paused"""
    threads: int = 0
    """how many CPUs its boxes may use; 0: they are not told"""


class _Heard:
    """Output of the command under way."""

    __slots__ = ("on_output", "parts")

    def __init__(self, on_output: OnOutput | None) -> None:
        self.on_output = on_output
        self.parts: dict[int, list[bytes]] = {1: [], 2: []}

    def __call__(self, stream: int, chunk: bytes) -> None:
        if self.on_output is not None:
            self.on_output("stdout" if stream == 1 else "stderr", chunk)
        else:
            self.parts[stream].append(chunk)


class NativeBox(BoxFiles, BoxRest, BoxSession):
    """See `tiltyard.sandbox.Box`."""

    def __init__(self, cell: int, life: int, fd: int, path: str, keeper: Keeper) -> None:
        self.home = HOME
        self.made_in = 0.0
        """seconds that making it took, until it could take its first command"""
        self.environment: Mapping[str, str] = {}
        self.on_renewed: Callable[[], Awaitable[None]] | None = None
        self.faults = 0
        """commands that the platform failed (`infra_error`)"""
        self._path = path
        self._keeper = keeper
        self._processes: list[NativeProcess] = []
        self._live(cell, life, InitLink(fd, f"box {os.getpid()}-{cell}-{life}"))

    def _live(self, cell: int, life: int, link: InitLink) -> None:
        self.cell = cell
        self.life = life
        self.id = f"{os.getpid()}-{cell}-{life}"
        self._link = link

    def become(self, fresh: "NativeBox") -> None:
        """Goes on as a box that nobody has used; what it was before must have been given up."""
        self.close()
        self.made_in = fresh.made_in
        self._live(fresh.cell, fresh.life, fresh._link)

    @property
    def paused(self) -> bool:
        return self._link.paused

    def _links(self) -> Sequence[InitLink]:
        return [self._link, *(each.link for each in self._processes if each.poll() is None)]

    def _freezer(self) -> Freeze | None:
        freeze = self._keeper.freeze
        return None if freeze is None else lambda on: freeze(self, on)

    def is_alive(self) -> bool:
        """Whether its PID 1 still holds the other end; for a box that nobody has used yet."""
        return self._link.is_alive()

    def close(self) -> None:
        """Lets go of the sockets, at which tilt-init ends; idempotent."""
        self._link.close("the box was released")
        for process in self._processes:
            process.abandon("the box was released")
        self._processes.clear()

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
        limits = Command.limits(cpu_seconds, wall_seconds, idle_seconds, output_bytes)
        terminal = Terminal(*tty) if tty else None
        try:
            command = Command.build(
                argv,
                stdin=stdin + b"\x04" if stdin and terminal else stdin,  # a terminal's input has no other end
                env={**self.environment, **(env or {})},
                path=self._path,
                threads=self._keeper.threads,
                cwd=cwd,
                files=files,
                fds=fds,
                stream=on_output is not None,
                tty=terminal.ends if terminal else None,
            )
            return await self._run(command, limits, _Heard(on_output), terminal)
        finally:
            if terminal:
                terminal.close()

    async def _run(
        self, command: Command, limits: wire.ExecLimits, heard: _Heard, terminal: Terminal | None
    ) -> ExecResult:
        link = self._link
        running = await link.begin(command, limits, heard)
        if terminal:
            terminal.hand_over()
        try:
            report = await running.ended
        except asyncio.CancelledError:
            link.kill(running)
            link.lose("a command in it was cancelled")
            raise
        finally:
            link.end()
        return await self._conclude(running.started, heard, report)

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
    ) -> NativeProcess:
        limits = Command.limits(cpu_seconds, wall_seconds, idle_seconds, output_bytes)
        terminal = Terminal(*tty) if tty else None
        theirs, ours = (-1, -1) if terminal else os.pipe()
        try:
            command = Command.build(
                *(argv,),
                stdin=b"",
                env={**self.environment, **(env or {})},
                path=self._path,
                threads=self._keeper.threads,
                cwd=cwd,
                files=files,
                fds=fds,
                stream=True,
                warm=False,
                tty=terminal.ends if terminal else None,
                input_fd=None if terminal else theirs,
            )
            return await self._branch_off(command, limits, keep_bytes, terminal, ours)
        except BaseException:
            if ours >= 0:
                os.close(ours)
            raise
        finally:
            if theirs >= 0:
                os.close(theirs)
            if terminal:
                terminal.close()

    async def _branch_off(
        self, command: Command, limits: wire.ExecLimits, keep_bytes: int, terminal: Terminal | None, ours: int
    ) -> NativeProcess:
        """The command on a branch of its own. `ours`: what writes its stdin, if it has no terminal."""
        before = await self.stats()
        link = await self._branch()
        try:
            process = NativeProcess(link, keep_bytes=keep_bytes, lost_to_memory=self._lost_to_memory(before))
            running = await link.begin(command, limits, process.hear)
        except BaseException:
            link.close("its command could not be started")
            raise
        process.follow(running, terminal.take_master() if terminal else ours, is_tty=terminal is not None)
        self._processes = [each for each in self._processes if each.poll() is None]
        self._processes.append(process)
        return process

    async def _branch(self) -> InitLink:
        ours, theirs = socket.socketpair()
        with theirs:
            link = InitLink(ours.detach(), f"a background command of box {self.id}")
            try:
                answer = await self._link.ask(
                    lambda ident: wire.bare_frame(ident, wire.Ask.branch), [theirs.fileno()]
                )
            except BaseException:
                link.close("it was never started")
                raise
        error, _, _ = wire.done(answer)
        if error:
            link.close("it was never started")
            raise SandboxBusy(
                f"no further background command can be started in box {self.id}: {os.strerror(error)}; "
                "at most 8 run at once, and each takes one of the box's processes"
            )
        return link

    def _lost_to_memory(self, before: BoxStats) -> Callable[[], Awaitable[bool]]:
        """Whether the memory limit has killed anything since; asked when a branch died."""

        async def look() -> bool:
            try:
                return (await self.stats()).oom_kills > before.oom_kills
            except SandboxGone:
                return await self._keeper.died_of_memory(self)

        return look

    async def _conclude(self, started: float, heard: _Heard, report: wire.ExitReport | None) -> ExecResult:
        out, err = b"".join(heard.parts[1]), b"".join(heard.parts[2])
        if report is None:
            oom = await self._keeper.died_of_memory(self)
            self.faults += not oom
            return lost(out, err, oom=oom, wall_seconds=time.monotonic() - started)
        if report.reason == wire.Reason.file:
            raise FileFault(f"cannot write the command's files: {os.strerror(report.error)}", report.error)
        if report.flags & wire.FLAG_STUCK:
            self._link.lose("processes in it could not be killed")
        ended = result(report, out, err)
        self.faults += ended.outcome is ExecOutcome.infra_error
        return ended

    async def reset(self) -> None:
        if self._keeper.renew is None:
            raise CapabilityRefused(f"box {self.id} cannot be reset by its backend: acquire another")
        await self._keeper.renew(self)
        if self.on_renewed is not None:
            await self.on_renewed()

    async def stats(self) -> BoxStats:
        _, _, record = wire.done(await self._link.ask(lambda ident: wire.bare_frame(ident, wire.Ask.stats)))
        found = wire.stats(record)
        return BoxStats(
            cpu_seconds=found.cpu_ns / 1e9,
            throttled_seconds=found.throttled_ns / 1e9,
            memory_mb=found.memory / _MIB,
            memory_peak_mb=found.peak / _MIB,
            disk_used_mb=found.disk_used / _MIB,
            disk_mb=found.disk / _MIB,
            inodes_used=found.inodes_used,
            inodes=found.inodes,
            processes=found.pids,
            oom_kills=found.oom_kills,
            pids_hits=found.pids_hits,
            background=found.branches,
        )

    async def survey(self) -> str:
        _, _, text = wire.done(await self._link.ask(lambda ident: wire.bare_frame(ident, wire.Ask.survey)))
        return os.fsdecode(text)

    async def listen(self, port: int) -> socket.socket:
        _check_port(port)
        return await listen(self._link, port)

    async def connect(self, port: int, *, timeout: float = 5.0) -> socket.socket:
        _check_port(port)
        last = time.monotonic() + timeout
        while True:
            for family in (4, 6):
                found = await dial(self._link, family, port)
                if isinstance(found, socket.socket):
                    return found
            if time.monotonic() >= last:
                raise PortClosed(
                    f"nothing listens on port {port} in box {self.id} after {timeout} s: {os.strerror(found)}"
                )
            await asyncio.sleep(_RETRY_SECONDS)


def _check_port(port: int) -> None:
    if not 0 < port < 1 << 16:
        raise PortClosed(f"port {port} does not exist: give 1 to 65535")
