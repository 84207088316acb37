"""The connection to one tilt-host, gone when either end is: a child of a root process, else behind tilt-door.

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
DOOR = Path("/run/tiltyard/door")
_CURE = (
    "open it with `sudo tiltyard sandbox door --group GROUP`, a group of this user; or use the docker backend"
)


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
        self._said = ""

    def start(self, store: Path, request: bytes, helpers: Helpers | None = None) -> None:
        """`helpers`: others than the current ones, for a root process. Raises SandboxUnavailable."""
        check_rights()
        self._socket = self._spawn(store, helpers) if os.geteuid() == 0 else _knock()
        self._socket.setblocking(False)
        self._socket.send(request)
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def _spawn(self, store: Path, helpers: Helpers | None) -> socket.socket:
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
                start_new_session=True,
                env={},
                cwd="/",
            )
        return ours

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
        held, process = self._let_go(), self._process
        self._process = None
        if held is not None:
            await asyncio.to_thread(_see_out, held)
        if process is not None:
            await asyncio.to_thread(_wait, process)

    def _let_go(self) -> socket.socket | None:
        held, self._socket = self._socket, None
        if held is not None:
            asyncio.get_running_loop().remove_reader(held)
        return held

    def _hear(self) -> None:
        for _ in range(_EVENTS_A_TURN):
            if self._socket is None:
                return
            try:
                message, control, _, _ = self._socket.recvmsg(
                    wire.REASON_SIZE, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                message, control = b"", []
            if not message:
                self._end()
                return
            if len(message) == wire.EVENT_SIZE:
                self._on_event(wire.host_event(message), _descriptor(control))
            else:
                self._said = message.rstrip(b"\0").decode(errors="replace")

    def _end(self) -> None:
        if (held := self._let_go()) is not None:
            held.close()
        process, self._process = self._process, None
        status = f"it ended with status {process.wait()}" if process is not None else "it ended"
        self._on_end(f"tilt-host: {self._said or status}")


def _knock() -> socket.socket:
    """A connection to a tilt-host of our own, made by tilt-door."""
    knocking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        knocking.connect(str(DOOR))
    except OSError as error:
        knocking.close()
        raise SandboxUnavailable(f"tilt-door does not open at {DOOR}: {error.strerror}; {_CURE}") from error
    return knocking


def _see_out(held: socket.socket) -> None:
    """Says that we are done, and waits until the other end is gone; boxes that still come are dropped."""
    with held, suppress(OSError):
        held.settimeout(_EXIT_SECONDS)
        held.shutdown(socket.SHUT_WR)
        while held.recv(wire.REASON_SIZE):
            pass


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
    """Raises SandboxUnavailable when this process can neither start tilt-host nor ask tilt-door for one."""
    if os.geteuid() != 0 and not os.access(DOOR, os.W_OK):
        found = "may not use" if DOOR.exists() else "finds no"
        who = f"this process has uid {os.geteuid()}"
        raise SandboxUnavailable(f"making sandboxes needs root; {who} and {found} {DOOR}: {_CURE}")
