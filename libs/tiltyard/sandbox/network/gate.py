"""The way out of one box: a listener on its loopback, held on this side.

Guarantees: the box holds no descriptor and no process of it; when the box is given back or reset the listener
and every connection are closed before another holder exists, and each has its record.
Does not: outlive this process. With it every connection ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .policy import Network
from .record import Account, Connection, OnConnection, Reason, Verdict
from .resolver import Resolver, SystemResolver
from .shape import Bucket
from .visit import Visit, Way

if TYPE_CHECKING:
    from tiltyard.sandbox.backend import Box

_BURST = 20
_REST_SECONDS = 0.1
_GONE = "the box was given back, reset or destroyed"


class Gate:
    """Prefer `attached`, or `WarmPool.acquire(network=…)`."""

    def __init__(
        self,
        box: "Box",
        network: Network,
        *,
        on_connection: OnConnection | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._box = box
        self._network = network
        self._on_connection = on_connection or (lambda connection: None)
        self._resolver = resolver or SystemResolver()
        rate = network.shape.kib_per_second * 1024
        self._way = Way(network, self._resolver, Bucket(rate), Bucket(rate))
        self._pace = Bucket(network.connections_per_second, _BURST)
        self._live: dict[asyncio.Task[Connection], Account] = {}
        self._count = 0
        self._listener: socket.socket | None = None
        self._acceptor: asyncio.Task[None] | None = None

    @property
    def live(self) -> int:
        """Connections under way."""
        return len(self._live)

    async def open(self) -> None:
        """Raises PortClosed, CapabilityRefused when the backend cannot, SandboxGone."""
        await self._enter()
        self._box.environment = self._network.environment()
        self._box.on_renewed = self._move

    def close(self) -> None:
        """Ends every connection, with its record; idempotent, never waits."""
        self._leave()
        self._box.environment = {}
        self._box.on_renewed = None
        self._resolver.close()

    async def _move(self) -> None:
        """The box is another one now: what was of the old one ends."""
        self._leave()
        await self._enter()

    async def _enter(self) -> None:
        self._listener = await self._box.listen(self._network.port)
        room = asyncio.Semaphore(self._network.connections)
        self._acceptor = asyncio.get_running_loop().create_task(self._accept(self._listener, room))

    def _leave(self) -> None:
        if self._acceptor is not None:
            self._acceptor.cancel()
            self._acceptor = None
        if self._listener is not None and self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self._listener = None
        for task, account in tuple(self._live.items()):
            del self._live[task]
            task.cancel()
            verdict = Verdict.allowed if account.address else Verdict.failed
            self._on_connection(account.close(verdict, Reason.box_gone, _GONE))

    async def _accept(self, listener: socket.socket, room: asyncio.Semaphore) -> None:
        """Waits until there is room, then for the pace, then for a client: what a box opens beyond that costs
        this process nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await room.acquire()
            await self._pace.take(1)
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:
                room.release()
                await asyncio.sleep(_REST_SECONDS)  # no descriptor is free, say: not the box's fault
                continue
            self._count += 1
            account = Account(self._box.id, self._count)
            if self._count > self._network.connections_in_all:
                client.close()
                listener.close()
                most = f"{self._network.connections_in_all} connections are all that the box may have"
                self._on_connection(account.close(Verdict.refused, Reason.too_many_connections, most))
                return
            task = loop.create_task(Visit(self._way, account, self._count).serve(client))
            self._live[task] = account
            task.add_done_callback(lambda task, client=client: self._note_end(task, client))
            task.add_done_callback(lambda task: room.release())

    def _note_end(self, task: "asyncio.Task[Connection]", client: socket.socket) -> None:
        account = self._live.pop(task, None)
        if task.cancelled():
            client.close()  # it may not have begun
        elif (error := task.exception()) is not None:
            context = {"message": "a connection out of a box ended by a fault", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            if account is not None:
                self._on_connection(account.close(Verdict.failed, Reason.broken, f"a fault: {error!r}"))
        elif account is not None:
            self._on_connection(task.result())


@asynccontextmanager
async def attached(
    box: "Box",
    network: Network,
    *,
    on_connection: OnConnection | None = None,
    resolver: Resolver | None = None,
) -> AsyncIterator[Gate]:
    """A way out of a box until the end of the context. Raises PortClosed, CapabilityRefused, SandboxGone."""
    gate = Gate(box, network, on_connection=on_connection, resolver=resolver)
    try:
        await gate.open()
        yield gate
    finally:
        gate.close()
