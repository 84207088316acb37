"""One connection of a box's, from its acceptance to its record."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import h11

from .dial import dial
from .exchange import new_server, pass_answer, send_request
from .hello import HANDSHAKE, check
from .lane import Lane
from .policy import Network
from .record import Account, Connection, Fault, Reason, Verdict, failed, refused
from .request import MOST_HEAD, Head, answer_to, read_head
from .resolver import Resolver
from .shape import Bucket, Luck, Reset

_CHUNK = 64 << 10
_ANSWER_SECONDS = 5.0
_LINGER_SECONDS = 1.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_DONE = "both sides had said all"

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Way:
    """What all connections of a box share."""

    network: Network
    resolver: Resolver
    up: Bucket
    down: Bucket


class Visit:
    """Serves one client, once."""

    def __init__(self, way: Way, account: Account, number: int) -> None:
        self._way = way
        self._account = account
        self._number = number
        self._answered = False
        """whether the client was told anything: what follows it could not understand"""

    async def serve(self, client: socket.socket) -> Connection:
        """Closes the socket whatever happens. Cancellation: the box is gone."""
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            await self._serve(reader, writer)
            return self._account.close(Verdict.allowed, Reason.done, _DONE)
        except Fault as fault:
            record = self._account.close(fault.verdict, fault.reason, fault.detail)
            if not self._answered:
                await _tell(reader, writer, answer_to(fault))
            return record
        except Reset:
            _reset(writer)
            return self._account.close(Verdict.failed, Reason.shaped, "reset as the network's shape says")
        except OSError as error:
            return self._account.close(Verdict.failed, Reason.broken, f"one side broke it off: {error}")
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        network = self._way.network
        client = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        try:
            async with asyncio.timeout(network.request_seconds):
                head = await read_head(reader, client, self._account)
        except TimeoutError as error:
            raise refused(
                Reason.slow, f"the request was not whole after {network.request_seconds} s"
            ) from error
        network.check(head.host, head.port)
        outside = await dial(self._account, network, self._way.resolver)
        await asyncio.sleep(network.shape.latency_ms / 1000)
        far_reader, far_writer = await asyncio.open_connection(sock=outside)
        up = self._lane(far_writer, "up")
        down = self._lane(writer, "down")
        try:
            if head.method == "CONNECT":
                writer.write(_opened(client))
                self._answered = True
                await self._tunnel(client.trailing_data[0], (reader, far_reader), up, down)
            else:
                await self._exchange(head, client, (reader, far_reader), up, down)
        except BaseException:
            far_writer.transport.abort()
            raise
        finally:
            up.stop()
            down.stop()
            far_writer.close()

    def _lane(self, writer: asyncio.StreamWriter, direction: str) -> Lane:
        network, account = self._way.network, self._account
        is_up = direction == "up"

        def count(size: int) -> None:
            self._answered = self._answered or not is_up
            account.carried(up=size if is_up else 0, down=0 if is_up else size)

        return Lane(
            writer,
            shape=network.shape,
            bucket=self._way.up if is_up else self._way.down,
            luck=Luck(network.shape, f"{self._number} {direction}"),
            most=network.connection_bytes,
            count=count,
        )

    async def _tunnel(
        self, early: bytes, readers: tuple[asyncio.StreamReader, asyncio.StreamReader], up: Lane, down: Lane
    ) -> None:
        """`early`: what the client sent before it was told that the tunnel stands."""

        async def send() -> None:
            await up.send(await self._greeting(early, readers[0]))
            await _pump(readers[0], up)

        await self._both(send(), _pump(readers[1], down))

    async def _greeting(self, early: bytes, reader: asyncio.StreamReader) -> bytes:
        """What the client says first; a TLS greeting is read whole, and judged, before any of it goes on."""
        said = early or await reader.read(_CHUNK)
        if not said.startswith(HANDSHAKE):
            return said
        seconds = self._way.network.request_seconds
        try:
            async with asyncio.timeout(seconds):
                while not check(said, self._account.host):
                    more = await reader.read(_CHUNK)
                    if not more:
                        raise failed(Reason.broken, "the client went away within its TLS greeting")
                    said += more
        except TimeoutError as error:
            raise refused(Reason.slow, f"the TLS greeting was not whole after {seconds} s") from error
        return said

    async def _exchange(
        self,
        head: Head,
        client: h11.Connection,
        readers: tuple[asyncio.StreamReader, asyncio.StreamReader],
        up: Lane,
        down: Lane,
    ) -> None:
        server = new_server()
        request = h11.Request(method=head.method, target=head.target, headers=head.headers)
        try:
            await up.send(server.send(request) or b"")
            await self._both(
                pass_answer(client, server, readers[1], down),
                send_request(client, readers[0], server, up, down),
                first_is_enough=True,
            )
        except h11.LocalProtocolError as error:
            raise failed(Reason.bad_answer, f"what was said does not fit together: {error}") from error
        await down.finish()

    async def _both(self, first: Work, second: Work, *, first_is_enough: bool = False) -> None:
        """Until both have ended, one failed, or nothing was carried for too long. Raises what failed."""
        tasks = [asyncio.ensure_future(work) for work in (first, second)]
        pending = set(tasks)
        most = self._way.network.idle_seconds
        try:
            while pending and not (first_is_enough and tasks[0].done()):
                idle = time.monotonic() - self._account.touched
                if idle >= most:
                    raise refused(Reason.idle, f"nothing was carried for {most} s")
                done, pending = await asyncio.wait(
                    pending, timeout=most - idle, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # whichever came first was raised


def _opened(client: h11.Connection) -> bytes:
    """The answer to CONNECT, after which `client` only holds what came early."""
    client.next_event()
    return client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established")) or b""


async def _pump(reader: asyncio.StreamReader, lane: Lane) -> None:
    while data := await reader.read(_CHUNK):
        await lane.send(data)
    await lane.finish()


async def _tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
    """The last word, and a moment in which what the client still sends does not drown it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            writer.write(answer)
            await writer.drain()
            writer.write_eof()
        async with asyncio.timeout(_LINGER_SECONDS):
            while await reader.read(_CHUNK):
                pass


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes as a broken network does: at once, and with what was under way lost."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
