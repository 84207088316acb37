"""Connections to servers inside a box: tilt-init makes them there and hands them out.

Guarantees: what comes out is a socket of the box's network namespace, connected."""

import array
import asyncio
import socket
from collections.abc import Sequence

from . import wire
from .link import InitLink


async def dial(link: InitLink, family: int, port: int) -> socket.socket | int:
    """One try on loopback (`family` 4 or 6): a non-blocking socket, or errno."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            answer = await link.ask(lambda ident: wire.connect_frame(ident, family, port), [theirs.fileno()])
        error, _, _ = wire.done(answer)
        if error:
            return error
        _, control, _, _ = ours.recvmsg(
            1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
    return await _settled(_received(control))


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
