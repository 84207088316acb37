"""Faults that a stand-in meets requests with, in the order in which they were put."""

import asyncio
import collections
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Fault:
    """One fault for requests whose method and path begin so."""

    match: str
    status: int = 0
    """answer this instead of doing anything"""
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    lost: bool = False
    """do it, and cut the connection instead of answering"""
    cut: bool = False
    """cut the connection instead of doing it"""
    late: float = 0.0
    """seconds to sleep first"""
    times: int = 1


def abort(request: web.Request) -> web.StreamResponse:
    """Cuts the connection."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


class Faults:
    """As an aiohttp middleware; counts every request."""

    def __init__(self) -> None:
        self.waiting: list[Fault] = []
        self.seen: collections.Counter[str] = collections.Counter()
        self.at: list[tuple[str, float]] = []
        """each request and the loop's time at which it came"""

    def put(self, match: str, **how: object) -> None:
        self.waiting.append(Fault(match, **how))  # type: ignore[arg-type]

    @property
    def middleware(self) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
        @web.middleware
        async def meet(request: web.Request, handler: Handler) -> web.StreamResponse:
            name = f"{request.method} {request.path}"
            self.seen[name] += 1
            self.at.append((name, asyncio.get_running_loop().time()))
            fault = next((each for each in self.waiting if name.startswith(each.match)), None)
            if fault is None:
                return await handler(request)
            fault.times -= 1
            if not fault.times:
                self.waiting.remove(fault)
            await request.read()  # what its sender takes back must have arrived
            await asyncio.sleep(fault.late)
            if fault.status:
                return web.json_response(
                    {"code": fault.status, "message": fault.text}, status=fault.status, headers=fault.headers
                )
            if fault.lost:
                await handler(request)
            return abort(request) if fault.lost or fault.cut else await handler(request)

        return meet
