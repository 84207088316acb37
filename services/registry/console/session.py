"""Who may see the console: a cookie, got once for the API token.

Guarantees: the cookie cannot be read by scripts, is sent to no other site's requests, opens the console's
pages alone and runs out; it holds no token.
Does not: know persons."""

import hashlib
import hmac
import time

from starlette.requests import Request
from starlette.responses import Response

COOKIE = "tiltyard_console"
LASTS = 7 * 24 * 3_600
"""Seconds."""


def _sign(token: str, until: int) -> str:
    return hmac.new(token.encode(), f"console:{until}".encode(), hashlib.sha256).hexdigest()


def mint(token: str, *, now: float) -> str:
    """A cookie's value, good for `LASTS` seconds."""
    until = int(now) + LASTS
    return f"{until}.{_sign(token, until)}"


def holds(value: str, token: str, *, now: float) -> bool:
    """Whether a cookie's value was made with this token and has not run out."""
    until, _, signature = value.partition(".")
    if not (until.isascii() and until.isdigit() and len(until) <= 12):
        return False
    return int(until) > now and hmac.compare_digest(signature.encode(), _sign(token, int(until)).encode())


def entered(request: Request, token: str) -> bool:
    """Whether the request carries a good cookie."""
    return holds(request.cookies.get(COOKIE, ""), token, now=time.time())


def enter(response: Response, token: str) -> None:
    """Give the browser its cookie."""
    response.set_cookie(
        COOKIE, mint(token, now=time.time()), max_age=LASTS, path="/console", httponly=True, samesite="strict"
    )
