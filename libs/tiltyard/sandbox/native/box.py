"""A native box: one socket to its tilt-init.

Guarantees: one reader on the event loop, no thread, no polling; a command that is cancelled is killed and
the box is spoiled.
Does not: destroy the box. Its supply does (`NativeSupply.discard`)."""

import asyncio
import errno
import os
import socket
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from tiltyard.sandbox.backend import HasFileno, OnOutput
from tiltyard.sandbox.errors import FileFault, FileTooLarge, SandboxBusy, SandboxGone
from tiltyard.sandbox.paths import HOME, locate
from tiltyard.sandbox.result import ExecResult

from . import wire
from .command import Command, content
from .verdict import lost, result

_CHUNK = 1 << 20
_READ_CHUNK = 256 << 10
_RECEIVE = 256 << 10


class _Running:
    """The command under way: where its output goes and who waits for its end."""

    __slots__ = ("ended", "err", "ident", "on_output", "out", "started")

    def __init__(
        self, ident: int, on_output: OnOutput | None, ended: "asyncio.Future[wire.ExitReport | None]"
    ) -> None:
        self.ident = ident
        self.on_output = on_output
        self.ended = ended
        self.out: list[bytes] = []
        self.err: list[bytes] = []
        self.started = time.monotonic()

    def hear(self, stream: int, chunk: bytes) -> None:
        if self.on_output is not None:
            self.on_output("stdout" if stream == 1 else "stderr", chunk)
        else:
            (self.out if stream == 1 else self.err).append(chunk)


class NativeBox:
    """See `tiltyard.sandbox.Box`."""

    def __init__(
        self,
        cell: int,
        life: int,
        fd: int,
        path: str,
        died_of_memory: Callable[["NativeBox"], Awaitable[bool]],
    ) -> None:
        self.cell = cell
        self.life = life
        self.id = f"{os.getpid()}-{cell}-{life}"
        self.home = HOME
        self.made_in = 0.0
        """seconds that making it took, until it could take its first command"""
        self._path = path
        self._died_of_memory = died_of_memory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        self._socket.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._buffer = bytearray()
        self._running: _Running | None = None
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self._gone = ""
        self._sending = asyncio.Lock()

    def is_alive(self) -> bool:
        """Whether its PID 1 still holds the other end; for a box that nobody has used yet."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    def close(self) -> None:
        """Lets go of the socket, at which tilt-init ends; idempotent."""
        self._lose("the box was released")
        if self._socket.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
            self._socket.close()

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        root, below = locate(path)
        data = content(data, path)
        for start in range(0, max(len(data), 1), _CHUNK):
            record = wire.file_record(root, below, data[start : start + _CHUNK], mode, append=start > 0)
            error, _, _ = wire.done(
                await self._ask(lambda ident, record=record: wire.write_frame(ident, record))
            )
            if error:
                raise FileFault(f"cannot write {path!r} in the box: {os.strerror(error)}", error)

    async def read(self, path: str, max_bytes: int = 1_000_000) -> bytes:
        root, below = locate(path)
        parts: list[bytes] = []
        got = 0
        while True:
            frame = await self._ask(
                lambda ident, at=got: wire.read_frame(
                    ident, root, below, at, min(_READ_CHUNK, max_bytes + 1 - at)
                )
            )
            error, size, part = wire.done(frame)
            if error:
                raise FileFault(f"cannot read {path!r} from the box: {_read_reason(error)}", error)
            got += len(part)
            if max(got, size) > max_bytes:
                raise FileTooLarge(
                    f"{path!r} has {max(got, size)} bytes, more than the {max_bytes} that were asked for"
                )
            parts.append(part)
            if not part or got >= size:
                return b"".join(parts)

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
        command = Command.build(
            argv,
            stdin=stdin,
            env=env,
            path=self._path,
            cwd=cwd,
            files=files,
            fds=fds,
            stream=on_output is not None,
        )
        limits = Command.limits(cpu_seconds, wall_seconds, idle_seconds, output_bytes)
        loop = self._listen()
        if self._running is not None:
            raise SandboxBusy(f"box {self.id} already runs a command: await it first, or acquire another box")
        self._last_id += 1
        running = self._running = _Running(self._last_id, on_output, loop.create_future())
        try:
            await self._send(command.frame(running.ident, limits), command.descriptors)
            report = await running.ended
        except asyncio.CancelledError:
            self._spoil(running.ident)
            raise
        finally:
            self._running = None
        return await self._conclude(running, report)

    async def _conclude(self, running: _Running, report: wire.ExitReport | None) -> ExecResult:
        out, err = b"".join(running.out), b"".join(running.err)
        if report is None:
            oom = await self._died_of_memory(self)
            return lost(out, err, oom=oom, wall_seconds=time.monotonic() - running.started)
        if report.reason == wire.Reason.file:
            raise FileFault(f"cannot write the command's files: {os.strerror(report.error)}", report.error)
        if report.flags & wire.FLAG_STUCK:
            self._lose("processes in it could not be killed")
        return result(report, out, err)

    def _listen(self) -> asyncio.AbstractEventLoop:
        if self._gone:
            raise SandboxGone(f"box {self.id} is gone: {self._gone}; acquire another")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket, self._hear)
        return self._loop

    async def _ask(self, frame: Callable[[int], bytes]) -> bytes:
        loop = self._listen()
        self._last_id += 1
        ident = self._last_id
        answer = self._answers[ident] = loop.create_future()
        try:
            await self._send(frame(ident), ())
            return await answer
        finally:
            self._answers.pop(ident, None)

    async def _send(self, frame: bytes, descriptors: Sequence[int]) -> None:
        """Frames leave whole and in order; a box that got half a frame is spoiled."""
        loop = self._listen()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        async with self._sending:
            sent = 0
            try:
                with suppress(BlockingIOError):
                    sent = self._socket.sendmsg([frame], rights, socket.MSG_NOSIGNAL)
                if sent < len(frame):
                    await self._send_rest(loop, frame, sent, rights)
            except (BrokenPipeError, ConnectionResetError):
                self._lose("its PID 1 died")
            except asyncio.CancelledError:
                self._lose("a request to it was cancelled half sent")
                raise

    async def _send_rest(
        self,
        loop: asyncio.AbstractEventLoop,
        frame: bytes,
        sent: int,
        rights: list[tuple[int, int, "array[int]"]],
    ) -> None:
        if rights and not sent:
            raise SandboxBusy(f"box {self.id} does not take requests now: its socket is full")
        await loop.sock_sendall(self._socket, memoryview(frame)[sent:])

    def _hear(self) -> None:
        try:
            got = self._socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            got = b""
        if not got:
            assert self._loop is not None
            self._loop.remove_reader(self._socket)
            self._lose("its PID 1 died")
            return
        self._buffer += got
        while (frame := wire.take_frame(self._buffer)) is not None:
            self._handle(frame)

    def _handle(self, frame: wire.Frame) -> None:
        running = self._running
        if frame.type == wire.Say.done:
            answer = self._answers.get(frame.id)
            if answer is not None and not answer.done():
                answer.set_result(frame.payload)
        elif running is None or frame.id != running.ident:
            return
        elif frame.type == wire.Say.output:
            running.hear(frame.stream, frame.payload)
        elif frame.type == wire.Say.exit and not running.ended.done():
            running.ended.set_result(wire.exit_report(frame.payload))

    def _spoil(self, ident: int) -> None:
        with suppress(OSError):
            self._socket.send(wire.kill_frame(ident), socket.MSG_NOSIGNAL)
        self._lose("a command in it was cancelled")

    def _lose(self, why: str) -> None:
        """From now on nothing can be asked; whoever waits is told."""
        self._gone = self._gone or why
        if self._running is not None and not self._running.ended.done():
            self._running.ended.set_result(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(SandboxGone(f"box {self.id} is gone: {why}"))


def _read_reason(error: int) -> str:
    if error == errno.ELOOP:
        return "the path holds a symlink, and none is followed"
    if error == errno.EINVAL:
        return "not a regular file"
    return os.strerror(error)
