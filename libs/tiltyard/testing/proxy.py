"""A TCP proxy that misbehaves on demand, between a client and a real server.

Guarantees: `cut`, `freeze` and `truncate` act on connections that are open and on those to come, until
`pass_on`.
Does not: understand what it carries."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

CHUNK = 1 << 16


class Fault(StrEnum):
    """What the proxy does with bytes."""

    NONE = "none"
    """It passes them on."""
    CUT = "cut"
    """It closes connections, and refuses new ones."""
    FREEZE = "freeze"
    """It keeps connections and passes nothing, as a stopped server or a silent network does."""
    TRUNCATE = "truncate"
    """It closes a connection after so many bytes of the server's."""


class Proxy:
    """Listens on `port` of 127.0.0.1 and forwards to another port of it, or to a unix socket."""

    def __init__(self, target: int | Path) -> None:
        self._target = target
        self._fault = Fault.NONE
        self._left = 0
        self._times = 0
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def pass_on(self) -> None:
        """Behave again."""
        self._become(Fault.NONE)

    def cut(self) -> None:
        """Close every connection, and every new one at once."""
        self._become(Fault.CUT)
        self._close_all()

    def freeze(self) -> None:
        """Pass nothing in either direction."""
        self._become(Fault.FREEZE)

    def truncate(self, after: int, *, times: int) -> None:
        """Close the next `times` connections after so many bytes from the server, and then behave."""
        with self._changed:
            self._left, self._times = after, times
        self._become(Fault.TRUNCATE)

    def close(self) -> None:
        self._closed = True
        self._become(Fault.CUT)
        self._server.close()
        self._close_all()

    def _become(self, fault: Fault) -> None:
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def _close_all(self) -> None:
        for one in list(self._open):
            _close(one)

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                client, _ = self._server.accept()
                if self._fault is Fault.CUT:
                    _close(client)
                    continue
                server = _connected(self._target)
                self._open |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, source is server), name="proxy", daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_server: bool) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                with self._changed:
                    self._changed.wait_for(lambda: self._fault is not Fault.FREEZE)
                carried += len(chunk)
                if from_server and self._truncates(carried):
                    break
                sink.sendall(chunk)
        for one in (source, sink):
            _close(one)
        self._open -= {source, sink}

    def _truncates(self, carried: int) -> bool:
        with self._changed:
            if self._fault is not Fault.TRUNCATE or carried <= self._left:
                return False
            self._times -= 1
            if self._times <= 0:
                self._fault = Fault.NONE
            return True


def _connected(target: int | Path) -> socket.socket:
    if isinstance(target, int):
        return socket.create_connection(("127.0.0.1", target))
    server = socket.socket(socket.AF_UNIX)
    server.connect(str(target))
    return server


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def proxied(target: int | Path) -> Iterator[Proxy]:
    """A proxy to a port of 127.0.0.1, or to a unix socket."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
