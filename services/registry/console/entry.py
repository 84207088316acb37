"""The console's door: the login link, the static files, and the redirect from `/`.

Guarantees: the token leaves the address bar at once; a wrong one tells nothing.
Does not: show any row."""

import hmac
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, RedirectResponse, Response

from services.registry.console import session
from services.registry.console.page import HEADERS, Pages
from services.registry.ports import Using
from tiltyard.web.problem import missing

STATIC = Path(__file__).parent / "static"
FILES = {"style.css": "text/css", "live.js": "text/javascript", "mark.svg": "image/svg+xml"}
router = APIRouter(include_in_schema=False)


class LoggedOut(Exception):
    """The request carries no good cookie."""


def inside(request: Request, ports: Using) -> None:
    """Dependency of every page; raises `LoggedOut`."""
    if not session.entered(request, ports.token):
        raise LoggedOut


async def on_logged_out(request: Request, _: Exception) -> Response:
    """The login page."""
    pages: Pages = request.app.state.pages
    return pages.render("login.html", {"refused": False, "entered": False}, 401)


@router.get("/")
async def root() -> Response:
    return RedirectResponse("/console", 303)


@router.get("/console/login")
async def login(
    request: Request, ports: Using, token: Annotated[str, Query(max_length=500)] = ""
) -> Response:
    """Exchange the API token for the cookie, and go on without it in the address."""
    pages: Pages = request.app.state.pages
    if not hmac.compare_digest(token.encode(), ports.token.encode()):
        return pages.render("login.html", {"refused": bool(token), "entered": False}, 401)
    response = pages.render("login.html", {"refused": False, "entered": True})
    session.enter(response, ports.token)
    return response


@router.get("/console/static/{name}")
async def static(name: str) -> Response:
    if name not in FILES:
        raise missing("file", name)
    kept = {**HEADERS, "Cache-Control": "no-cache"}
    return FileResponse(STATIC / name, media_type=FILES[name], headers=kept)
