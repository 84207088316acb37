"""Whom a TLS client greets within a tunnel: the name must be the tunnel's own.

Guarantees: a greeting that names another host than was asked for goes nowhere, in however many pieces it
comes. OpenSSL reads it, as a server that hangs up once it knows the name.
Does not: see an encrypted greeting (ECH), or the Host within: only a server's own rules keep those apart."""

import ssl
from collections.abc import Callable

from .host import OddHost, canonical
from .record import Reason, refused

HANDSHAKE = b"\x16"
"""the first byte of every TLS greeting"""
_MOST_HELLO = 64 << 10


def check(data: bytes, host: str) -> bool:
    """Whether the greeting is whole; more is needed otherwise. Raises Fault when it is for another host."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = _noting(names)
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        if len(data) < _MOST_HELLO:
            return False
    except ssl.SSLError:
        pass  # it hung up, as it must: without a certificate, and told to
    if not names:
        raise refused(Reason.bad_request, "what begins as a TLS greeting cannot be read as one")
    if names[0] is not None and _canonical(names[0]) != host:
        raise refused(Reason.host_mismatch, f"the tunnel is for {host}, the TLS greeting in it names another")
    return True


def _noting(names: list[str | None]) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int]:
    def note(server: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int:
        del server, context
        names.append(name)
        return int(ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)

    return note


def _canonical(name: str) -> str:
    try:
        return canonical(name)
    except OddHost:
        return ""
