"""A rollout service that says what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from services.runner.policy import Policy

Reply = web.Response | dict[str, Any]


def completion(text: str = "ok", *, version: int = 3, finish_reason: str = "stop") -> dict[str, Any]:
    """A completion as the rollout service gives it."""
    tokens = list(text.encode())
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": finish_reason,
        "prompt_token_ids": [1, 2],
        "token_ids": tokens,
        "logprobs": {"token_logprobs": [-0.5] * len(tokens)},
        "policy_versions": [version] * len(tokens),
    }
    return {"choices": [choice]}


@dataclass
class Service:
    """Replies in order, the last one for ever; keeps every request."""

    replies: list[Callable[[], Reply]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        index = min(len(self.requests), len(self.replies)) - 1
        reply = self.replies[index]()
        return reply if isinstance(reply, web.Response) else web.json_response(reply)


@asynccontextmanager
async def _serving(service: Service, may_act: asyncio.Event | None = None) -> AsyncIterator[Policy]:
    app = web.Application()
    app.router.add_post("/v1/completions", service.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    allowed = asyncio.Event()
    allowed.set()
    try:
        async with aiohttp.ClientSession() as session:
            port = runner.addresses[0][1]
            yield Policy(session, f"http://127.0.0.1:{port}/", may_act or allowed)
    finally:
        await runner.cleanup()


@pytest.fixture
def serving() -> Callable[..., Any]:
    return _serving


@pytest.fixture
def service() -> type[Service]:
    return Service


@pytest.fixture
def reply() -> Callable[..., dict[str, Any]]:
    return completion
