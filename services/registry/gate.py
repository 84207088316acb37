"""What a request must show before anything looks at it: a known Host, a token, a body of bounded size.

Guarantees: tokens are compared in constant time; a body that is too large is refused unread, or at the first
byte too many when it does not state its length.
Does not: guard the console's pages; they ask for a cookie (`console.session`)."""

import hmac
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry.problem import Refusal, answer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = ("/healthz", "/readyz", "/metrics")
"""Paths that ask for no token; they tell counts and states, nothing of any task."""
_PORT = re.compile(r":\d+$")


def host_of(header: str) -> str:
    """The name in a Host header, without port or brackets, in lower case."""
    return _PORT.sub("", header).strip("[]").lower() if header.count(":") < 2 or "]" in header else header


class Gate:
    """Pure ASGI middleware, so that nothing is buffered on the way."""

    def __init__(
        self, app: ASGIApp, *, token: str, hosts: tuple[str, ...], body_limit: int, upload_limit: int
    ) -> None:
        self.app = app
        self._token = token.encode()
        self._hosts = {*LOOPBACK, *(h.lower() for h in hosts)}
        self._body_limit, self._upload_limit = body_limit, upload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._wrong_with(scope["path"], headers) or _bad_address(scope)
        if refusal is not None:
            response = answer(
                refusal.status_code, refusal.detail, instance=scope["path"], headers=refusal.headers
            )
            await response(scope, receive, send)
            return
        limit = self._limit(scope)
        await self.app(scope, _counted(receive, limit), send)

    def _limit(self, scope: Scope) -> int:
        upload = scope["method"] == "PUT" and scope["path"] == "/v1/artifacts"
        return self._upload_limit if upload else self._body_limit

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
                "this path asks for `Authorization: Bearer TOKEN`; `tiltyard up` keeps the token in the file"
                " `token` of its state directory",
                headers={"WWW-Authenticate": 'Bearer realm="tiltyard"'},
            )
        return self._too_large(path, headers)

    def _may_enter(self, path: str, headers: Headers) -> bool:
        if path in OPEN or path == "/" or path.startswith("/console"):
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)

    def _too_large(self, path: str, headers: Headers) -> Refusal | None:
        limit = self._upload_limit if path == "/v1/artifacts" else self._body_limit
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
        f"the body{stated} is larger than the {limit:,} bytes allowed here; send less, or upload data with"
        " PUT /v1/artifacts",
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
