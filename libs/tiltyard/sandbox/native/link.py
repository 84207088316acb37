"""One socket to tilt-init, or to a branch of it: requests out, answers, output and the command's end in.

Guarantees: one reader on the event loop, no thread, no polling; frames leave whole and in order; when the
other end is gone, whoever waits is told.
Does not: decide what a loss means. The box and the process that hold the link do."""

import asyncio
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress

from tiltyard.sandbox.errors import CapabilityRefused, SandboxBusy, SandboxGone, SandboxPaused

from . import wire
from .command import Command

_RECEIVE = 256 << 10

Heard = Callable[[int, bytes], None]
"""Gets the stream's number (1 stdout, 2 stderr) and what came on it."""


class Running:
    """The command under way: where its output goes and who waits for its end."""

    __slots__ = ("ended", "hear", "ident", "started")

    def __init__(self, ident: int, hear: Heard, ended: "asyncio.Future[wire.ExitReport | None]") -> None:
        self.ident = ident
        self.hear = hear
        self.ended = ended
        self.started = time.monotonic()


class InitLink:
    """Requests to one tilt-init; at most one command at a time."""

    def __init__(self, fd: int, name: str) -> None:
        self.name = name
        """what errors call the other end"""
        self.gone = ""
        """why nothing can be asked any more; empty while it can"""
        self.paused = False
        """whether the box stands still, so that nothing is asked"""
        self.no_descriptors = ""
        """why the other end cannot be given descriptors; empty when it can"""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        self._socket.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._buffer = bytearray()
        self._running: Running | None = None
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self._end: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()

    def is_alive(self) -> bool:
        """Whether the other end is still held; for a link that nobody has used yet."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def busy(self) -> bool:
        return self._running is not None

    def close(self, why: str) -> None:
        """Lets go of the socket, at which the other end dies; idempotent."""
        self.lose(why)
        if self._socket.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def lose(self, why: str) -> None:
        """From now on nothing can be asked; whoever waits is told."""
        self.gone = self.gone or why
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        if self._running is not None and not self._running.ended.done():
            self._running.ended.set_result(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(SandboxGone(f"{self.name} is gone: {why}"))

    async def ended(self) -> None:
        """Waits until the other end is gone; for a branch, which goes after its command."""
        if not self.gone:
            self._end = asyncio.get_running_loop().create_future()
            await self._end

    async def ask(
        self, frame: Callable[[int], bytes], descriptors: Sequence[int] = (), *, at_rest: bool = False
    ) -> bytes:
        """The payload of the answer to a request. Raises SandboxGone, SandboxPaused unless `at_rest`."""
        loop = self._listen(at_rest=at_rest)
        self._last_id += 1
        ident = self._last_id
        answer = self._answers[ident] = loop.create_future()
        try:
            await self._send(frame(ident), descriptors)
            return await answer
        finally:
            self._answers.pop(ident, None)

    async def begin(self, command: Command, limits: wire.ExecLimits, hear: Heard) -> Running:
        """Starts a command; its end comes as `ended`, None when the other end died first; then call `end`."""
        loop = self._listen()
        if self._running is not None:
            raise SandboxBusy(f"{self.name} already runs a command: await it first, or acquire another box")
        self._last_id += 1
        running = self._running = Running(self._last_id, hear, loop.create_future())
        try:
            await self._send(command.frame(running.ident, limits), command.descriptors)
        except BaseException:
            self._running = None
            raise
        return running

    def end(self) -> None:
        """The command's end was taken; the next may begin."""
        self._running = None

    def kill(self, running: Running) -> None:
        with suppress(OSError):
            self._socket.send(wire.kill_frame(running.ident), socket.MSG_NOSIGNAL)

    def _listen(self, *, at_rest: bool = False) -> asyncio.AbstractEventLoop:
        if self.gone:
            raise SandboxGone(f"{self.name} is gone: {self.gone}; acquire another")
        if self.paused and not at_rest:
            raise SandboxPaused(f"{self.name} is paused: `await box.resume()` first")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket.fileno(), self._hear)
        return self._loop

    async def _send(self, frame: bytes, descriptors: Sequence[int]) -> None:
        """A link that took half a frame is lost."""
        if descriptors and self.no_descriptors:
            raise CapabilityRefused(f"{self.name} cannot be handed descriptors: {self.no_descriptors}")
        loop = self._listen(at_rest=True)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        async with self._sending:
            sent = 0
            try:
                with suppress(BlockingIOError):
                    sent = self._socket.sendmsg([frame], rights, socket.MSG_NOSIGNAL)
                if sent < len(frame):
                    await self._send_rest(loop, frame, sent, rights)
            except (BrokenPipeError, ConnectionResetError):
                self.lose("its PID 1 died")
            except asyncio.CancelledError:
                self.lose("a request to it was cancelled half sent")
                raise

    async def _send_rest(
        self,
        loop: asyncio.AbstractEventLoop,
        frame: bytes,
        sent: int,
        rights: list[tuple[int, int, "array[int]"]],
    ) -> None:
        if rights and not sent:
            raise SandboxBusy(f"{self.name} does not take requests now: its socket is full")
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
            self._loop.remove_reader(self._socket.fileno())
            self.lose("its PID 1 died")
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
