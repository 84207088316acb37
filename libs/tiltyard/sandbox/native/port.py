"""Sockets on a box's loopback: tilt-init makes them there and hands them out.

Guarantees: what comes out is a socket of the box's network namespace, connected or listening."""

import array
import asyncio
import os
import socket
from collections.abc import Sequence

from tiltyard.sandbox.errors import PortClosed

from . import wire
from .link import InitLink


async def dial(link: InitLink, family: int, port: int) -> socket.socket | int:
    """One try on loopback (`family` 4 or 6): a non-blocking socket, or errno."""
    made = await _ask(link, wire.Ask.connect, family, port)
    return await _settled(made) if isinstance(made, socket.socket) else made


async def listen(link: InitLink, port: int) -> socket.socket:
    """A listener on 127.0.0.1 in the box, non-blocking. Raises PortClosed, CapabilityRefused, SandboxGone."""
    made = await _ask(link, wire.Ask.listen, 4, port)
    if not isinstance(made, socket.socket):
        raise PortClosed(f"nobody can listen on port {port} in {link.name}: {os.strerror(made)}")
    made.setblocking(False)
    return made


async def _ask(link: InitLink, kind: wire.Ask, family: int, port: int) -> socket.socket | int:
    """The socket, or errno."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            answer = await link.ask(
                lambda ident: wire.port_frame(ident, kind, family, port), [theirs.fileno()]
            )
        error, _, _ = wire.done(answer)
        if error:
            return error
        _, control, _, _ = ours.recvmsg(
            1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
    return _received(control)


def _received(control: Sequence[tuple[int, int, bytes]]) -> socket.socket:
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return socket.socket(fileno=fds[0])


async def _settled(dialled: socket.socket) -> socket.socket | int:
    """Waits until the connection stands or failed."""
    loop = asyncio.get_running_loop()
    dialled.setblocking(False)
    ready = loop.create_future()
    loop.add_writer(dialled, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
        error = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        loop.remove_writer(dialled)
        dialled.close()
        raise
    loop.remove_writer(dialled)
    if not error:
        return dialled
    dialled.close()
    return error
