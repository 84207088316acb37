"""The head of a request to the proxy, read and judged before anything is done for it.

Guarantees: HTTP is parsed by h11 and nothing of it is passed on as it came; a request that names two hosts,
or that two readers could frame differently, is refused.
Does not: speak HTTP/2 or take more than one request on a connection."""

import asyncio
import re
from dataclasses import dataclass

import h11

from .host import OddHost, split
from .record import Account, Fault, Reason, Verdict, failed, refused

MOST_HEAD = 16 << 10
_CHUNK = 16 << 10
_ABSOLUTE = re.compile(r"http://([^/?#]+)([/?][^#]*)?", re.IGNORECASE)
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect"),
        *(b"transfer-encoding", b"proxy-authorization", b"proxy-authenticate", b"http2-settings"),
    }
)
_STATUS = {
    Reason.odd_host: 400,
    Reason.bad_request: 400,
    Reason.host_mismatch: 400,
    Reason.slow: 408,
    Reason.unknown_name: 502,
    Reason.unreachable: 502,
    Reason.bad_answer: 502,
    Reason.idle: 504,
}
_FORBIDDEN = 403

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Head:
    """What is asked for."""

    method: str
    """CONNECT: a tunnel"""
    host: str
    port: int
    target: bytes
    """path and query, for the server; empty for a tunnel"""
    headers: Headers
    """for the server: without those that concern this connection, with the right Host"""


async def read_head(reader: asyncio.StreamReader, client: h11.Connection, account: Account) -> Head:
    """Raises Fault. Tells the account the host, as far as one was named."""
    try:
        while (event := client.next_event()) is h11.NEED_DATA:
            client.receive_data(await reader.read(_CHUNK))
    except h11.RemoteProtocolError as error:
        raise refused(Reason.bad_request, str(error)) from error
    if not isinstance(event, h11.Request):
        raise failed(Reason.broken, "the client went away without a request")
    head = _judge(event, account)
    account.host, account.port = head.host, head.port
    return head


def passed_on(headers: Headers) -> Headers:
    """Without what concerns one connection, and what such a header names. Raises Fault."""
    named = {
        word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")
    }
    if named & {b"host", b"content-length", b"content-type"}:
        raise refused(Reason.bad_request, "the Connection header names a header that the message needs")
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP | named]


def answer_to(fault: Fault) -> bytes:
    """What the client is told."""
    status = _STATUS.get(fault.reason, _FORBIDDEN if fault.verdict is Verdict.refused else 502)
    text = f"tiltyard: {fault.reason}: {fault.detail}\n".encode(errors="replace")
    head = (
        f"HTTP/1.1 {status} {fault.reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text


def _judge(request: h11.Request, account: Account) -> Head:
    headers: Headers = list(request.headers)
    method, target = request.method.decode(), request.target.decode()
    names = [name for name, _ in headers]
    if method == "CONNECT":
        authority, path, default = target, "", None
        if {b"content-length", b"transfer-encoding"} & set(names):
            raise refused(Reason.bad_request, "a CONNECT request has no body")
    else:
        found = _ABSOLUTE.fullmatch(target)
        if found is None:
            raise refused(
                Reason.bad_request,
                f"{method} {target[:80]!r}: this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT",
            )
        authority, path, default = found[1], found[2] or "/", 80
        if b"content-length" in names and b"transfer-encoding" in names:
            raise refused(Reason.bad_request, "the body has both a length and an encoding")
    account.host = authority
    host, port = _split(authority, default)
    for name, value in headers:
        if name == b"host":
            _match(value.decode("latin-1"), host, port, default)
    return Head(
        method=method,
        host=host,
        port=port,
        target=(path if path.startswith("/") else f"/{path}").encode() if path else b"",
        headers=_for_server(headers, host, port, b"transfer-encoding" in names) if path else [],
    )


def _for_server(headers: Headers, host: str, port: int, chunked: bool) -> Headers:
    shown = f"[{host}]" if ":" in host else host
    mine: Headers = [(b"host", f"{shown}:{port}".encode() if port != 80 else shown.encode())]
    mine.append((b"connection", b"close"))
    if chunked:
        mine.append((b"transfer-encoding", b"chunked"))
    return mine + [(name, value) for name, value in passed_on(headers) if name != b"host"]


def _split(authority: str, default: int | None) -> tuple[str, int]:
    try:
        return split(authority, default)
    except OddHost as error:
        raise refused(Reason.odd_host, str(error)) from error


def _match(value: str, host: str, port: int, default: int | None) -> None:
    """A Host header without a port means the port of the request."""
    found = _split(value.strip(), port)
    if found != (host, port):
        raise refused(
            Reason.host_mismatch, f"the request is for {host}:{port}, its Host header names another"
        )
