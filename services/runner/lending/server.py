"""The lending server's life, and what its errors are answered with.

Guarantees: when it ends every lent sandbox is destroyed.
Does not: start unless the runner was given a port and a token."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from services.runner.lending import api
from services.runner.lending.lender import LeaseEnded, Lender, NoSuchSandbox
from services.runner.settings import RunnerSettings
from tiltyard.sandbox import (
    FileFault,
    FileTooLarge,
    NetworkRefused,
    SandboxBusy,
    SandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxUnavailable,
    WarmPool,
)
from tiltyard.telemetry.events import event_logger
from tiltyard.web import openapi, problem
from tiltyard.web.gate import Gate
from tiltyard.web.problem import Refusal
from tiltyard.web.token import read_token

log = event_logger("runner")
LARGEST_BODY = 64_000_000
GRACE_SECONDS = 2


class PortInUse(OSError):
    """The address cannot be listened on."""


def create_app(lender: Lender, token: str, *, hosts: tuple[str, ...] = ()) -> FastAPI:
    """The application over its lender."""
    app = FastAPI(title="Tiltyard sandboxes", version="1", docs_url=None, redoc_url=None)
    app.state.lender = lender
    problem.install(app, refuse, (SandboxError, LeaseEnded, NoSuchSandbox))
    app.include_router(api.router)
    for path in ("/healthz", "/readyz"):
        app.add_api_route(path, healthy, methods=["GET"], include_in_schema=False)
    openapi.install(app, _examples)
    app.add_middleware(
        Gate,
        token=token,
        token_hint="it is the one in the runner's TILTYARD_TOKEN_FILE",
        hosts=hosts,
        body_limit=lambda method, path: LARGEST_BODY,
    )
    app.add_middleware(problem.LastResort)
    return app


def _examples(operation: str) -> dict[str, Any]:
    """Bodies of requests, for people."""
    if not operation.startswith("order_v1"):
        return {}
    network = {"allow": ["example.org:443", "*.example.org:443"], "shape": {"latency_ms": 200}}
    return {
        "isolated": {"value": {"lease_seconds": 60}},
        "network": {"value": {"lease_seconds": 60, "network": network}},
    }


async def healthy() -> Response:
    return PlainTextResponse("ok\n")


def refuse(error: Exception) -> Refusal | None:
    """What an error of the engine or a lease is answered with."""
    match error:
        case NoSuchSandbox():
            return Refusal(404, str(error))
        case LeaseEnded() | SandboxGone():
            return Refusal(410, str(error))
        case SandboxPaused():
            return Refusal(409, "it is paused: POST …/resume first")
        case SandboxBusy():
            return Refusal(409, str(error))
        case NetworkRefused():
            return Refusal(403, str(error))
        case SandboxUnavailable():
            return Refusal(503, str(error), headers={"Retry-After": "5"})
        case FileTooLarge():
            return Refusal(413, str(error))
        case FileFault() if error.error == errno.ENOENT:
            return Refusal(404, str(error))
        case SandboxError():
            return Refusal(422, str(error))
        case _:
            return None


@contextlib.asynccontextmanager
async def lending(settings: RunnerSettings) -> AsyncIterator[WarmPool | None]:
    """Lend sandboxes while the block runs, when settings name a port; the pool that they are from.

    Raises PortInUse, BadToken, SandboxUnavailable."""
    if settings.sandbox_port is None:
        yield None
        return
    assert settings.token_file is not None, "settings check it"
    token = read_token(settings.token_file)
    with _listen(settings.host, settings.sandbox_port) as listening:
        async with WarmPool(size=settings.sandboxes) as pool:
            lender = Lender(pool, permission=settings.permission)
            app = create_app(lender, token, hosts=settings.allowed_hosts)
            log.info("runner.lends", address=listening.getsockname(), size=settings.sandboxes)
            async with _served(app, listening), _swept(lender):
                yield pool


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise PortInUse(
            f"cannot lend sandboxes on {host}:{port}: {error.strerror}; choose TILTYARD_SANDBOX_PORT"
        ) from error


@contextlib.asynccontextmanager
async def _served(app: FastAPI, listening: socket.socket) -> AsyncIterator[None]:
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS)
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@contextlib.asynccontextmanager
async def _swept(lender: Lender) -> AsyncIterator[None]:
    sweeping = asyncio.create_task(lender.keep_sweeping())
    try:
        yield
    finally:
        sweeping.cancel()


class _Server(uvicorn.Server):
    """Signals belong to the runner."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
