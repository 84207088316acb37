"""One plain HTTP request, passed on and answered.

Guarantees: both sides' messages are parsed and written anew, so that neither can hide a second one in them;
the connection to the server serves this one request.
Does not: cache, redirect, or change a body."""

import asyncio

import h11

from .lane import Lane
from .record import Reason, failed, refused
from .request import Headers, passed_on

_CHUNK = 64 << 10
_MOST_ANSWER_HEAD = 64 << 10
_SWITCHING = 101


async def send_request(
    client: h11.Connection, reader: asyncio.StreamReader, server: h11.Connection, up: Lane, down: Lane
) -> None:
    """The client's body, to the server, whose head was sent. Raises Fault, OSError."""
    while True:
        try:
            event = client.next_event()
            if event is h11.NEED_DATA:
                if client.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    await down.send(client.send(go_on) or b"")
                client.receive_data(await reader.read(_CHUNK))
                continue
        except h11.RemoteProtocolError as error:
            raise refused(Reason.bad_request, str(error)) from error
        if isinstance(event, h11.Data):
            await up.send(server.send(h11.Data(data=event.data)) or b"")
        elif isinstance(event, h11.EndOfMessage):
            await up.send(server.send(h11.EndOfMessage()) or b"")
            return
        else:
            raise failed(Reason.broken, "the client went away within its request")


async def pass_answer(
    client: h11.Connection, server: h11.Connection, reader: asyncio.StreamReader, down: Lane
) -> None:
    """The server's answer, to the client. Raises Fault, OSError."""
    while True:
        try:
            event = server.next_event()
            if event is h11.NEED_DATA:
                server.receive_data(await reader.read(_CHUNK))
                continue
        except h11.RemoteProtocolError as error:
            raise failed(Reason.bad_answer, f"the server's answer: {error}") from error
        if isinstance(event, h11.Response):
            await down.send(_head(client, event))
        elif isinstance(event, h11.Data):
            await down.send(client.send(h11.Data(data=event.data)) or b"")
        elif isinstance(event, h11.EndOfMessage):
            await down.send(client.send(h11.EndOfMessage()) or b"")
            return
        elif not isinstance(event, h11.InformationalResponse) or event.status_code == _SWITCHING:
            raise failed(Reason.bad_answer, "the server broke off, or changed the protocol")


def new_server() -> h11.Connection:
    """The proxy's side of a connection to a server."""
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_ANSWER_HEAD)


def _head(client: h11.Connection, answer: h11.Response) -> bytes:
    headers: Headers = list(answer.headers)
    if any(name == b"transfer-encoding" for name, _ in headers):
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    mine = [*passed_on(headers), (b"connection", b"close")]
    passed = h11.Response(status_code=answer.status_code, headers=mine, reason=answer.reason)
    try:
        return client.send(passed) or b""
    except h11.LocalProtocolError as error:
        raise failed(Reason.bad_answer, f"the server's answer: {error}") from error
