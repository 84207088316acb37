"""A command that runs beside others in a box, served by a branch of its tilt-init.

Guarantees: its end takes whatever it started; its output is kept up to a bound, the newest last, with the
offset of every byte; nothing of it outlives its box.
Does not: outlive the handle's box, or share its limits: memory, processes and CPU are counted for the box."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tiltyard.sandbox.backend import Output, Stream
from tiltyard.sandbox.errors import InvalidExec, SandboxGone, SandboxPaused
from tiltyard.sandbox.result import ExecResult

from .link import InitLink, Running
from .terminal import set_size
from .verdict import lost, result


class _Kept:
    """The newest bytes of one stream."""

    __slots__ = ("data", "most", "start")

    def __init__(self, most: int) -> None:
        self.most = most
        self.data = bytearray()
        self.start = 0
        """offset of the first byte that is kept"""

    def add(self, chunk: bytes) -> None:
        self.data += chunk
        if (over := len(self.data) - self.most) > 0:
            del self.data[:over]
            self.start += over

    def since(self, offset: int) -> Output:
        start = max(offset, self.start)
        return Output(
            data=bytes(self.data[start - self.start :]), start=start, end=self.start + len(self.data)
        )


class NativeProcess:
    """See `tiltyard.sandbox.backend.Process`."""

    def __init__(
        self,
        link: InitLink,
        *,
        keep_bytes: int,
        lost_to_memory: Callable[[], Awaitable[bool]],
    ) -> None:
        self._link = link
        self._streams = {1: _Kept(keep_bytes), 2: _Kept(keep_bytes)}
        self._lost_to_memory = lost_to_memory
        self._input = -1
        self._is_tty = False
        self._running: Running | None = None
        self._result: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def hear(self, stream: int, chunk: bytes) -> None:
        self._streams[stream].add(chunk)
        self._news.set()

    def follow(self, running: Running, input_fd: int, *, is_tty: bool) -> None:
        """Its command was started: from now on its end is awaited, and its input is ours to close."""
        os.set_blocking(input_fd, False)
        self._input = input_fd
        self._is_tty = is_tty
        self._running = running
        self._task = asyncio.get_running_loop().create_task(self._await_end(running))

    @property
    def link(self) -> InitLink:
        """To the branch that serves it."""
        return self._link

    def poll(self) -> ExecResult | None:
        return self._result.result() if self._result.done() else None

    def output(self, stream: Stream = "stdout", offset: int = 0) -> Output:
        return self._streams[1 if stream == "stdout" else 2].since(offset)

    async def more(self, stream: Stream = "stdout", offset: int = 0) -> Output:
        while True:
            self._news.clear()
            found = self.output(stream, offset)
            if found.data or self._result.done():
                return found
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait((news, self._result), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    async def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        left = memoryview(data)
        while left:
            if self._input < 0:
                raise InvalidExec("the command's input is closed: it was ended, or its end was sent")
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                await self._writable(loop)
            except OSError as error:
                raise SandboxGone(f"the command no longer reads its input: {error.strerror}") from error

    async def _writable(self, loop: asyncio.AbstractEventLoop) -> None:
        ready = loop.create_future()
        loop.add_writer(self._input, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait((ready, self._result), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._input >= 0:
                loop.remove_writer(self._input)

    def close_input(self) -> None:
        if self._input < 0:
            return
        if self._is_tty and not self._result.done():
            with suppress(OSError):
                os.write(self._input, b"\x04")  # a terminal has no end of its own: this is typed
            return
        fd, self._input = self._input, -1
        os.close(fd)

    def resize(self, rows: int, columns: int) -> None:
        if not self._is_tty:
            raise InvalidExec("the command has no terminal: start it with tty=(rows, columns)")
        set_size(self._input, rows, columns)

    async def wait(self) -> ExecResult:
        return await asyncio.shield(self._result)

    async def kill(self) -> ExecResult:
        if self._link.paused:
            raise SandboxPaused(f"{self._link.name} is paused: `await box.resume()` first")
        if self._running is not None:
            self._link.kill(self._running)
        return await self.wait()

    def abandon(self, why: str) -> None:
        """Its box is gone, and it with it."""
        self._link.close(why)

    async def _await_end(self, running: Running) -> None:
        report = await running.ended
        out, err = (bytes(self._streams[which].data) for which in (1, 2))
        if report is None:
            oom = await self._lost_to_memory()
            ended = lost(out, err, oom=oom, wall_seconds=time.monotonic() - running.started)
        else:
            ended = result(report, out, err)
        await self._link.ended()
        self._link.close("its command has ended")
        self._result.set_result(ended)
        if self._input >= 0:
            fd, self._input = self._input, -1
            asyncio.get_running_loop().remove_writer(fd)
            os.close(fd)
