"""The connection to one tilt-host: started as a child, spoken to over one socket, gone when either end is.

Guarantees: nothing is left when this process dies: tilt-host sees the end of the socket, kills every box
and goes."""

import array
import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tiltyard.sandbox.errors import SandboxUnavailable

from . import wire
from .toolchain import CompilerFault, Helpers, current_helpers

_EVENTS_A_TURN = 64
_EXIT_SECONDS = 15.0


class HostLink:
    """One tilt-host. `on_event` gets each event and its descriptor (-1: none); `on_end` the reason of its
    end."""

    def __init__(
        self, on_event: Callable[[wire.HostEvent, int], None], on_end: Callable[[str], None]
    ) -> None:
        self._on_event = on_event
        self._on_end = on_end
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, store: Path, request: bytes, helpers: Helpers | None = None) -> None:
        """`helpers`: others than the current ones. Raises SandboxUnavailable."""
        check_rights()
        try:
            helpers = helpers or current_helpers()
        except CompilerFault as error:
            raise SandboxUnavailable(f"the sandbox helpers are not built: {error}") from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [helpers.host, str(theirs.fileno()), str(store)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={},
                cwd="/",
            )
        ours.setblocking(False)
        self._socket = ours
        ours.send(request)
        asyncio.get_running_loop().add_reader(ours, self._hear)

    def ask(self, request: bytes) -> bool:
        """False: the socket is full or tilt-host is gone."""
        if self._socket is None:
            return False
        try:
            self._socket.send(request, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    async def close(self) -> None:
        """Ends tilt-host and waits until it has destroyed everything. Idempotent."""
        self._let_go()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, _EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        if process.stderr is not None:
            process.stderr.close()

    def _let_go(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _hear(self) -> None:
        for _ in range(_EVENTS_A_TURN):
            if self._socket is None:
                return
            try:
                message, control, _, _ = self._socket.recvmsg(
                    wire.EVENT_SIZE, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                message, control = b"", []
            if not message:
                self._end()
                return
            self._on_event(wire.host_event(message), _descriptor(control))

    def _end(self) -> None:
        self._let_go()
        said = ""
        process, self._process = self._process, None
        if process is not None and process.stderr is not None:
            with process.stderr:
                said = process.stderr.read(4096).decode(errors="replace").strip()
            process.wait()
        self._on_end(said or f"tilt-host ended with status {process.returncode if process else None}")


def _descriptor(control: list[tuple[int, int, bytes]]) -> int:
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for extra in fds[1:]:
        with suppress(OSError):
            os.close(extra)
    return fds[0] if fds else -1


def check_rights() -> None:
    """Raises SandboxUnavailable when this process may not start tilt-host with its rights."""
    if os.geteuid() != 0:
        raise SandboxUnavailable(
            f"making sandboxes needs root, and this process has uid {os.geteuid()}: "
            "run it as root (sudo), or use the docker backend"
        )
