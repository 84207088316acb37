"""What a request must show before anything looks at it: a known Host, a token, a body of bounded size.

Guarantees: tokens are compared in constant time; a body that is too large is refused unread, or at the first
byte too many when it does not state its length.
Does not: know a service's routes; the service says which are open, and how large a body may be."""

import hmac
import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiltyard.web.problem import Refusal, answer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROBES = ("/healthz", "/readyz", "/metrics")
"""Paths that ask for no token; they tell counts and states, nothing of any task."""
_PORT = re.compile(r":\d+$")


def host_of(header: str) -> str:
    """The name in a Host header, without port or brackets, in lower case."""
    return _PORT.sub("", header).strip("[]").lower() if header.count(":") < 2 or "]" in header else header


class Gate:
    """Pure ASGI middleware, so that nothing is buffered on the way."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        token_hint: str,
        hosts: tuple[str, ...],
        body_limit: Callable[[str, str], int],
        is_open: Callable[[str], bool] = PROBES.__contains__,
    ) -> None:
        """`body_limit(method, path)` is in bytes; `token_hint` says where callers find the token."""
        self.app = app
        self._token, self._token_hint = token.encode(), token_hint
        self._hosts = {*LOOPBACK, *(h.lower() for h in hosts)}
        self._body_limit, self._is_open = body_limit, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._body_limit(scope["method"], scope["path"])
        refusal = (
            self._wrong_with(scope["path"], headers) or _bad_address(scope) or _oversized(headers, limit)
        )
        if refusal is not None:
            response = answer(
                refusal.status_code, refusal.detail, instance=scope["path"], headers=refusal.headers
            )
            await response(scope, receive, send)
            return
        await self.app(scope, _counted(receive, limit), send)

    def _wrong_with(self, path: str, headers: Headers) -> Refusal | None:
        host = host_of(headers.get("host", ""))
        if host not in self._hosts:
            return Refusal(
                421,
                f"Host {host[:100]!r} is not served here; name it in TILTYARD_ALLOWED_HOSTS if it should be",
            )
        if not self._may_enter(path, headers):
            return Refusal(
                401,
                f"this path asks for `Authorization: Bearer TOKEN`; {self._token_hint}",
                headers={"WWW-Authenticate": 'Bearer realm="tiltyard"'},
            )
        return None

    def _may_enter(self, path: str, headers: Headers) -> bool:
        if self._is_open(path):
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)


def _oversized(headers: Headers, limit: int) -> Refusal | None:
    stated = headers.get("content-length", "0")
    if not (stated.isascii() and stated.isdigit()):
        return Refusal(400, "Content-Length is not a number")
    return too_large(limit, int(stated)) if int(stated) > limit else None


def _bad_address(scope: Scope) -> Refusal | None:
    """No row can hold a NUL, so no address can name one."""
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        return Refusal(400, "the address holds a NUL character; remove it")
    return None


def too_large(limit: int, size: int | None = None) -> Refusal:
    """413, and the connection is closed so that the rest need not be read."""
    stated = f" of {size:,} bytes" if size is not None else ""
    return Refusal(
        413,
        f"the body{stated} is larger than the {limit:,} bytes allowed here; send less",
        headers={"Connection": "close"},
    )


def _counted(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large(limit)
        return message

    return counting
